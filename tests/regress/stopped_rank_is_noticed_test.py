"""Waits of ranks are as long as their peers need, so a rank that is stopped must be told from one
that works: by its launcher, and by the other ranks where no launcher of ours watches.
"""

from __future__ import annotations

import os
import signal
import time

from hand_started import start_ranks
from support import ProcessTest

HEARTBEAT_SECONDS = 2


class StoppedRank(ProcessTest):
    def stop(self, stopped: int, **changes: object) -> None:
        config = self.config(
            mesh={"pipe": 1, "data": 3},
            train_batch_size=9,
            run={"steps": 1_000_000},
            launch={"heartbeat_seconds": HEARTBEAT_SECONDS},
        )
        ranks = start_ranks(self, 3, f"stopped-{stopped}", config)
        ranks[0].await_step(3)
        os.kill(ranks[stopped].pid, signal.SIGSTOP)
        began = time.monotonic()
        others = [rank for i, rank in enumerate(ranks) if i != stopped]
        results = [rank.wait(patience=HEARTBEAT_SECONDS + 15) for rank in others]
        took = time.monotonic() - began
        os.kill(ranks[stopped].pid, signal.SIGKILL)
        for result in results:
            self.assert_code(result, 4)
        told = "".join(result.err for result in results)
        self.assertIn(f"rank {stopped} stopped answering", told)
        # The store of a stopped rank 0 does not answer either: that is found out first.
        self.assertLess(took, HEARTBEAT_SECONDS + (10 if stopped == 0 else 4))

    def test_by_the_other_ranks(self) -> None:
        self.stop(2)

    def test_by_the_other_ranks_when_it_holds_the_store(self) -> None:
        self.stop(0)
