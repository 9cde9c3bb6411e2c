"""The module `penstock.pipe.schedule` under DeepSpeed's name: one module, not a copy."""

import sys

from penstock.pipe import schedule
from penstock.pipe.schedule import *  # noqa: F403  (For type checkers; see the next line.)

sys.modules[__name__] = schedule
