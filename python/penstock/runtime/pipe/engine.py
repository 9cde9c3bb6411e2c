"""The module `penstock.pipe.engine` under DeepSpeed's name: one module, not a copy."""

import sys

from penstock.pipe import engine
from penstock.pipe.engine import *  # noqa: F403  (For type checkers; see the next line.)

sys.modules[__name__] = engine
