"""SIGTERM to all processes of a run, which is what systemd and batch systems do, lost `--save`:
ranks had no handler and died, though docs/launching.md promises a saved step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from hand_started import start_ranks
from support import ProcessTest, raw_lines


class SignalledGroup(ProcessTest):
    def long(self, data: int = 1) -> Path:
        return self.config(
            mesh={"pipe": 2, "data": data},
            run={"steps": 1_000_000},
            launch={"heartbeat_seconds": 5},
        )

    def assert_saved(self, run: str) -> None:
        folder = self.folder / run
        index = json.loads((folder / "w/model.safetensors.index.json").read_text())
        for name in set(index["weight_map"].values()):
            self.assertTrue((folder / "w" / name).exists(), name)
        steps = [json.loads(line)["step"] for line in raw_lines(folder)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertTrue((folder / "loss.svg").exists())

    def test_under_the_own_launcher(self) -> None:
        for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGHUP, 75)):
            with self.subTest(signal=number.name):
                run = self.start_train(self.long(2), number.name, "--save", f"{number.name}/w")
                run.await_step(3)
                for pid in [*run.ranks().values(), run.pid]:
                    os.kill(pid, number)
                self.assert_code(run.wait(), code)
                self.assert_saved(number.name)

    def test_under_another_launcher_one_rank_is_enough(self) -> None:
        ranks = start_ranks(self, 2, "hand", self.long(), "--save", "hand/w")
        ranks[0].await_step(3)
        os.kill(ranks[1].pid, signal.SIGTERM)
        for rank in ranks:
            self.assert_code(rank.wait(), 75)
        self.assert_saved("hand")

    def test_the_second_signal_ends_a_rank_that_does_not_get_to_its_step(self) -> None:
        ranks = start_ranks(self, 2, "hand", self.long())
        ranks[0].await_step(3)
        os.kill(ranks[1].pid, signal.SIGSTOP)
        os.kill(ranks[0].pid, signal.SIGTERM)
        time.sleep(2.2)
        os.kill(ranks[0].pid, signal.SIGTERM)
        self.assert_code(ranks[0].wait(patience=2), 75)
        os.kill(ranks[1].pid, signal.SIGKILL)
