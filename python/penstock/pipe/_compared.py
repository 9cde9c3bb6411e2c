"""What ranks of a pipeline have in common: when its engine is made, and before each step.

Before a step, replicas of a stage have the same options of their optimizers, and the first and the
last stage of a replica take inputs and labels of the same samples (penstock/_step_words.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import _torch
from penstock._optimizers import described
from penstock._step_words import Compared, Facts, Options, StepWords

if TYPE_CHECKING:
    import torch

    from penstock._runtime import Communicator
    from penstock.pipe._data import Rounds
    from penstock.pipe.engine import PipelineEngine
    from penstock.pipe.topology import ProcessTopology

__all__ = ["facts_of_engine", "step_words"]


def facts_of_engine(engine: PipelineEngine) -> Facts:
    """Of all of its ranks."""
    return [
        *engine.config.facts(),
        ("layers of the model", str(len(engine.module._layer_specs))),
        ("partition", str(engine.module.parts)),
        ("batch sizes", engine._sizes()),
        ("gradient_clipping", str(engine.gradient_clipping())),
        ("ZeRO settings", repr(engine._zero)),
        ("loss scale", str(engine.loss_scale)),
        ("types", str(engine._type)),
        ("optimizer", described(type(engine.optimizer).__name__, engine.optimizer.defaults)),
        ("scheduler", type(engine.lr_scheduler).__name__),
        *_torch.load().facts_of_host_updates(),  # Stages update copies of tied parameters.
    ]


def step_words(
    communicator: Communicator,
    topology: ProcessTopology,
    optimizer: torch.optim.Optimizer,
    so_far: Callable[[], Facts],
    rounds: Callable[[], Rounds | None],
) -> StepWords:
    """so_far: of the steps before.  rounds: of a loader that this rank goes round, if it does."""
    options = Options(optimizer)
    stages = [topology.filter_match(pipe=stage) for stage in range(topology.get_dim("pipe"))]
    ends = [list(each) for each in zip(stages[0], stages[-1], strict=True)]

    def of_loader() -> Facts:
        found = rounds()
        return [] if found is None else [("data loader", found.told())]

    return StepWords(
        communicator,
        [
            Compared(lambda: [*so_far(), *options.facts()], stages),
            Compared(of_loader, ends),
        ],
    )
