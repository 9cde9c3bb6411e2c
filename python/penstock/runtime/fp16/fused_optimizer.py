"""DeepSpeed's class of an Adam in 16 bits without ZeRO, which isinstance() knows an engine's by."""

from __future__ import annotations

from typing import Any

from penstock._compatibility import refuse_in
from penstock.ops.adam import FusedAdam
from penstock.runtime.base_optimizer import DeepSpeedOptimizer

__all__ = ["FP16_Optimizer"]

refuse_in(globals())


class FP16_Optimizer(DeepSpeedOptimizer, stages=(0,)):  # noqa: N801  (DeepSpeed's name.)
    """What an engine of stage 0 steps in fp16 or bf16, if it is a FusedAdam."""

    @classmethod
    def _holds(cls, optimizer: Any, update: Any) -> bool:
        return update.short_type is not None and isinstance(optimizer, FusedAdam)
