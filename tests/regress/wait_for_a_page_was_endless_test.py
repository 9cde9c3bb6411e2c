"""Under ZeRO 3, a rank whose peer stopped within a pass waited for it for ever.

Without a launcher of ours, a rank asked after its peers only in waits that its progress told of,
and the wait of a page of parameters is not one of these.
"""

from __future__ import annotations

import os
import signal

from hand_started import start_ranks
from support import ProcessTest

HEARTBEAT_SECONDS = 2


class WaitForAPage(ProcessTest):
    def test_ends_when_its_peer_is_silent(self) -> None:
        config = self.config(
            mesh={"pipe": 1, "data": 2},
            zero_optimization={"stage": 3},
            run={"steps": 1_000_000},
            launch={"heartbeat_seconds": HEARTBEAT_SECONDS},
        )
        ranks = start_ranks(self, 2, "run", config, "--inject", "stop:rank=1,step=4,at=F")
        result = ranks[0].wait(patience=60)
        os.kill(ranks[1].pid, signal.SIGKILL)
        ranks[1].wait()
        self.assert_code(result, 4)
        self.assertIn("rank 1 stopped answering", result.err)
