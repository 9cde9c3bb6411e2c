"""The module `penstock.utils.tensor_fragment` by DeepSpeed's later name: one module, not a copy."""

import sys

from penstock.utils import tensor_fragment
from penstock.utils.tensor_fragment import *  # noqa: F403  (For type checkers.)

sys.modules[__name__] = tensor_fragment
