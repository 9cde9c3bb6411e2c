"""A disk that takes its time ended the run: an fsync of 40 s at default settings ended both ranks
with exit 4, without an index, and an update of optimizer states in a file was taken for a hang.

Whoever uses files has launch.disk_seconds, and the others wait for it as long.
"""

from __future__ import annotations

from pathlib import Path

from hand_started import start_ranks
from slow_calls import slow_calls
from support import PENSTOCK, ProcessTest, losses

INDEX = "model.safetensors.index.json"


class SlowDisk(ProcessTest):
    def slow(self, call: str, path: str, seconds: int, rank: int | None = None) -> dict[str, str]:
        variables = slow_calls(self.folder, call, path, seconds, rank)
        if not variables:
            self.skipTest("no C compiler")
        return variables

    def one_stage(self, data: int, **launch: float) -> Path:
        limits = {"heartbeat_seconds": 1, "startup_seconds": 20, **launch}
        return self.config(mesh={"pipe": 1, "data": data}, launch=limits, run={"steps": 2})

    def test_a_slow_fsync_does_not_end_a_save(self) -> None:
        """The launcher's replica waits for the one that saves, and so does one without it."""
        slow = self.slow("fsync", "model-0", 4)
        config = self.one_stage(2)
        own = self.start(
            *(PENSTOCK, "train", config, "--run", "own", "--save", "own/w"),
            environment=self.environment(**slow),
        )
        hand = start_ranks(self, 2, "hand", config, "--save", self.folder / "hand/w", **slow)
        self.assert_code(own.wait(), 0)
        for rank in hand:
            self.assert_code(rank.wait(), 0)
        for run in ("own", "hand"):
            self.assertTrue((self.folder / run / "w" / INDEX).exists(), run)
            self.assertTrue((self.folder / run / "w" / "config.json").exists(), run)
            self.assertEqual(len(losses(self.folder / run)), 3, run)

    def offloaded(self, **launch: float) -> Path:
        states = {"device": "nvme", "nvme_path": str(self.folder)}
        return self.config(
            mesh={"pipe": 1, "data": 2},
            launch={"heartbeat_seconds": 1, "startup_seconds": 20, **launch},
            run={"steps": 2},
            zero_optimization={"stage": 1, "offload_optimizer": states},
        )

    def test_a_slow_update_from_a_file_goes_on(self) -> None:
        slow = self.slow("sync_file_range", str(self.folder), 3, rank=1)
        config = self.offloaded()
        hand = start_ranks(self, 2, "hand", config, **slow)
        result = self.train(config, "--run", "own", **slow)
        self.assert_code(result, 0)
        for rank in hand:
            self.assert_code(rank.wait(), 0)

    def test_a_disk_that_never_answers_is_named(self) -> None:
        slow = self.slow("sync_file_range", str(self.folder), 60, rank=1)
        result = self.train(self.offloaded(disk_seconds=2), "--run", "own", **slow)
        self.assert_code(result, 5)
        self.assertRegex(result.err, "rank 1 waits for nobody at .*(states|updating parameters)")
        self.assertIn("raise launch.disk_seconds", result.err)

    def test_loading_may_differ_by_more_than_the_heartbeat(self) -> None:
        """Ranks whose loading differed by more died before the first step, whatever
        launch.startup_seconds said."""
        slow = self.slow("open", self.text.name, 4, rank=1)
        config = self.one_stage(2)
        hand = start_ranks(self, 2, "hand", config, **slow)
        result = self.train(config, "--run", "own", **slow)
        self.assert_code(result, 0)
        for rank in hand:
            self.assert_code(rank.wait(), 0)
