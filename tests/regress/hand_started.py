"""Ranks of `penstock train` that are started by hand: no launcher of ours watches them."""

from __future__ import annotations

import support
from support import PENSTOCK, free_port


def start_ranks(
    test: support.ProcessTest, count: int, run: str, *words: object, **environment: str
) -> list[support.Started]:
    """One process a rank; `words` come after `penstock train`."""
    port = str(free_port())
    ranks = []
    for rank in range(count):
        variables = test.environment(
            RANK=str(rank),
            WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            **environment,
        )
        started = test.start(PENSTOCK, "train", *words, "--run", run, environment=variables)
        started.directory = test.folder / run
        ranks.append(started)
    return ranks
