"""DeepSpeed's classes of optimizers that engines step, which isinstance() knows them by."""

from penstock._compatibility import refuse_in
from penstock._engines.update.stepped_optimizer import OfEngine

__all__ = ["DeepSpeedOptimizer", "ZeROOptimizer"]

refuse_in(globals())


class DeepSpeedOptimizer(metaclass=OfEngine, stages=(0, 1, 2, 3)):
    """What an engine steps; it is of torch's class, too."""


class ZeROOptimizer(DeepSpeedOptimizer, stages=(1, 2, 3)):
    """What an engine steps whose replicas share anything."""
