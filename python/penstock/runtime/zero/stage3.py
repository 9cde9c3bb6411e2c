"""DeepSpeed's class of optimizers under ZeRO 3, which isinstance() knows an engine's by."""

from penstock._compatibility import refuse_in
from penstock._engines.update.stepped_optimizer import OfEngine

__all__ = ["DeepSpeedZeroOptimizer_Stage3"]

refuse_in(globals())


class DeepSpeedZeroOptimizer_Stage3(metaclass=OfEngine, stages=(3,)):  # noqa: N801
    """What an engine of stage 3 steps; it is of torch's class, too."""
