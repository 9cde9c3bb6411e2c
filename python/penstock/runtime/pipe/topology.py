"""The module `penstock.pipe.topology` under DeepSpeed's name: one module, not a copy."""

import sys

from penstock.pipe import topology
from penstock.pipe.topology import *  # noqa: F403  (For type checkers; see the next line.)

sys.modules[__name__] = topology
