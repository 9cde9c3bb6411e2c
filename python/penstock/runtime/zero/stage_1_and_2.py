"""DeepSpeed's class of optimizers under ZeRO 1 and 2, which isinstance() knows an engine's by."""

from penstock._compatibility import refuse_in
from penstock._engines.update.stepped_optimizer import OfEngine

__all__ = ["DeepSpeedZeroOptimizer"]

refuse_in(globals())


class DeepSpeedZeroOptimizer(metaclass=OfEngine, stages=(1, 2)):
    """What an engine of stage 1 or 2 steps; it is of torch's class, too."""
