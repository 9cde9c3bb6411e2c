"""How fast an engine takes samples."""

from __future__ import annotations

import time
import weakref
from typing import Protocol

__all__ = ["Throughput"]


class TakesSamples(Protocol):
    """An engine, which counts what its steps take."""

    global_samples: int


class Throughput:
    """How fast an engine takes samples: from the end of its first step on, or since start()."""

    def __init__(self, engine: TakesSamples) -> None:
        self._engine = weakref.ref(engine)
        self._begin: tuple[float, int] | None = None

    def begin(self) -> None:
        """Does what start() does, once."""
        if self._begin is None:
            self.start()

    def start(self) -> None:
        """Counts from here on."""
        engine = self._engine()
        self._begin = (time.perf_counter(), 0 if engine is None else engine.global_samples)

    def avg_samples_per_sec(self) -> float:
        """Samples a second of all replicas together; 0 where no step has ended since start()."""
        engine = self._engine()
        if engine is None or self._begin is None:
            return 0.0
        begin_s, samples = self._begin
        return (engine.global_samples - samples) / (time.perf_counter() - begin_s)
