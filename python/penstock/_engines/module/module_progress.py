"""How far an engine without a pipeline has come, with the microbatches of its script."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock._engines.module.module_steps import ModuleSteps
from penstock._engines.steps.engine_progress import EngineProgress

__all__ = ["ModuleProgress"]

_log = logging.getLogger("penstock")


class ModuleProgress(EngineProgress):
    """Progress with the microbatches.  Inside a step it is that of the last whole one."""

    def __init__(self, engine: ModuleSteps) -> None:
        super().__init__(engine)
        self._plain = engine

    def counters(self) -> dict[str, int]:
        """micro_steps: of whole steps.  Warns inside a step, whose gradients nobody saves."""
        engine = self._plain
        taken = engine.micro_steps % engine.gradient_accumulation_steps()
        if (taken or engine._model.has_gradients) and engine.global_rank == 0:
            _log.warning(
                "save_checkpoint() inside step %d, after %d of %d microbatches: gradients of a "
                "part of a step are not saved; whoever loads this begins that step anew",
                engine.global_steps,
                taken,
                engine.gradient_accumulation_steps(),
            )
        return {**super().counters(), "micro_steps": engine.micro_steps - taken}

    def drop_step(self) -> None:
        """The step begins anew."""
        engine = self._plain
        engine._losses.clear()
        engine.micro_steps -= engine.micro_steps % engine.gradient_accumulation_steps()

    def go_on(self, counters: Mapping[str, int]) -> None:
        """Goes on with the microbatches that were given, too."""
        super().go_on(counters)
        engine = self._plain
        steps = engine.global_steps * engine.gradient_accumulation_steps()
        taken = counters.get("micro_steps", steps)
        is_whole = taken % engine.gradient_accumulation_steps() == 0
        engine.micro_steps = taken if is_whole else steps
