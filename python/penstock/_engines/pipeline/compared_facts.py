"""What ranks of a pipeline compare before each step.

Replicas of a stage have the same options of their optimizers, and the first and the
last stage of a replica take inputs and labels of the same samples (update/step_facts.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock._engines.update.step_facts import Compared, Facts, Options, StepSignals

if TYPE_CHECKING:
    import torch

    from penstock._engines.pipeline.data_rounds import DataRounds
    from penstock._engines.pipeline.topology import ProcessTopology
    from penstock._runtime import Communicator

__all__ = ["step_words"]


def step_words(
    communicator: Communicator,
    topology: ProcessTopology,
    optimizer: torch.optim.Optimizer,
    so_far: Callable[[], Facts],
    rounds: Callable[[], DataRounds | None],
) -> StepSignals:
    """so_far: of the steps before.  rounds: of a loader that this rank goes round, if it does."""
    options = Options(optimizer)
    stages = [topology.filter_match(pipe=stage) for stage in range(topology.get_dim("pipe"))]
    ends = [list(each) for each in zip(stages[0], stages[-1], strict=True)]

    def of_loader() -> Facts:
        found = rounds()
        return [] if found is None else [("data loader", found.told())]

    return StepSignals(
        communicator,
        [
            Compared(lambda: [*so_far(), *options.facts()], stages),
            Compared(of_loader, ends),
        ],
    )
