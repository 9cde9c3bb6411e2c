"""How far a pipeline's engine has come, as its checkpoints have it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock._engines.steps.engine_progress import EngineProgress
from penstock._engines.steps.engine_steps import EngineSteps

if TYPE_CHECKING:
    from penstock._engines.pipeline.data_rounds import DataRounds
    from penstock._engines.pipeline.pipeline_stage import Stage

__all__ = ["PipelineProgress"]

_log = logging.getLogger("penstock")


class PipelineProgress(EngineProgress):
    """Progress with the stages' forwards, and the place in the data that train_batch() goes round.

    rounds: the data, where the engine goes round it; it goes on with what go_round() gets.
    """

    def __init__(
        self,
        engine: EngineSteps,
        stages: Mapping[int, Stage],
        rounds: Callable[[], DataRounds | None],
        go_round: Callable[[Iterator[Any]], None],
    ) -> None:
        super().__init__(engine)
        self._stages = stages
        self._rounds = rounds
        self._go_round = go_round
        self._next: DataRounds | None = None

    def counters(self) -> dict[str, int]:
        """forwards: of a stage, in training, which seeds of layers count."""
        forwards = max((each.forwards for each in self._stages.values()), default=0)
        return {**super().counters(), "forwards": forwards}

    def own(self) -> dict[str, Any]:
        """The place in the data."""
        rounds = self._rounds()
        return {"data": None if rounds is None else rounds.place()}

    def check(self, own: Mapping[str, Any], common: Mapping[str, Any], *, is_own: bool) -> None:
        """Goes there, beside what is there already."""
        self._next, rounds, place = None, self._rounds(), own.get("data")
        if rounds is None or place is None:
            return
        if not is_own:
            place = self._place_of_other(place, common["counters"]["microbatch"])
        self._next = rounds.at(place)

    def go_on(self, counters: Mapping[str, int]) -> None:
        """Goes on with the data, too."""
        super().go_on(counters)
        engine = self._engine
        forwards = engine.global_steps * engine.gradient_accumulation_steps()
        for stage in self._stages.values():
            stage.forwards = counters.get("forwards", forwards)
        if self._next is not None:
            self._next.settle()
            self._go_round(self._next)
            self._next = None

    def _place_of_other(self, place: Mapping[str, Any], samples: int) -> dict[str, Any]:
        """The place as many samples into the round, where replicas or microbatches are others."""
        own = super().counters()["microbatch"]
        taken, rest = divmod(place["taken"] * samples, own)
        if rest:
            _log.warning(
                "the data goes on %d samples before the checkpoint's place: microbatches are of %d "
                "samples, and were of %d",
                rest,
                own,
                samples,
            )
        return {"round": place["round"], "taken": taken, "start": {}, "generators": []}
