"""The module `penstock.pipe.module` under DeepSpeed's name: one module, not a copy."""

import sys

from penstock.pipe import module
from penstock.pipe.module import *  # noqa: F403  (For type checkers; see the next line.)

sys.modules[__name__] = module
