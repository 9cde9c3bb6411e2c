"""DeepSpeed's place for loaders of data.

data = iter(RepeatingLoader(loader))
engine.train_batch(data)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock._compatibility import refuse_in
from penstock._engines.pipeline.data_rounds import DataRounds

__all__ = ["RepeatingLoader"]

refuse_in(globals())


class RepeatingLoader:
    """Goes round a loader again and again, in another order each time where its sampler has one."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self._iterator = DataRounds(loader)

    def __iter__(self) -> Iterator[Any]:
        """Itself, where it is."""
        return self

    def __next__(self) -> Any:
        return next(self._iterator)
