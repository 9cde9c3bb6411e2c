"""What DeepSpeed has under deepspeed.utils, by another import line.

logger, log_dist: the log "penstock".  groups: of data parallelism.  RepeatingLoader.
safe_get_*, safe_set_*: what optimizers have of parameters.  set_z3_leaf_modules and its like:
marks on modules, which change nothing that penstock does.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from typing import Any

from penstock._compatibility import lacking

__all__ = ["groups", "log_dist", "logger"]

logger = logging.getLogger("penstock")

_FROM = {
    "RepeatingLoader": "penstock.runtime.dataloader",
    "z3_leaf": "penstock._engines.module.leaf_modules",
    "safe_": "penstock.utils.tensor_fragment",
}


def log_dist(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Writes to the log on these ranks; None or [-1]: on all of them."""
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    if not ranks or -1 in ranks or rank in ranks:
        logger.log(level, "rank %d: %s", rank, message)


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for."""
    if name in ("groups", "tensor_fragment", "zero_to_fp32"):
        return importlib.import_module(f"penstock.utils.{name}")
    for part, module in _FROM.items():
        if part in name:
            return getattr(importlib.import_module(module), name)
    raise lacking(__name__, name)
