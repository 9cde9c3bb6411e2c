"""The module `penstock.zero.partition_parameters` by DeepSpeed's name: one module, not a copy."""

import sys

from penstock.zero import partition_parameters
from penstock.zero.partition_parameters import *  # noqa: F403  (For type checkers.)

sys.modules[__name__] = partition_parameters
