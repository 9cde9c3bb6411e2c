"""How far an engine has come, as its checkpoints have it (penstock/_engines/saving)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._engines.steps.engine_steps import EngineSteps

__all__ = ["EngineProgress"]


class EngineProgress:
    """Counts of steps and samples, which a checkpoint has and sets."""

    def __init__(self, engine: EngineSteps) -> None:
        self._engine = engine

    def counters(self) -> dict[str, int]:
        """steps, samples: so far; microbatch: samples of one, over all replicas."""
        engine = self._engine
        return {
            "steps": engine.global_steps,
            "samples": engine.global_samples,
            "microbatch": engine.train_micro_batch_size_per_gpu() * engine.dp_world_size,
        }

    def own(self) -> dict[str, Any]:
        """Values of this rank: none."""
        return {}

    def check(self, own: Mapping[str, Any], common: Mapping[str, Any], *, is_own: bool) -> None:
        """Everything can be gone on from."""

    def drop_step(self) -> None:
        """Nothing is under way between two calls."""

    def go_on(self, counters: Mapping[str, int]) -> None:
        """Goes on from counters that were saved; of `penstock train`'s there are but the steps."""
        engine, steps = self._engine, counters["steps"]
        engine.global_steps = steps
        engine.global_samples = counters.get("samples", steps * engine.train_batch_size())
