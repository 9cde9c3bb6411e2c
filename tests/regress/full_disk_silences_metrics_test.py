"""One failed write of metrics.jsonl was silent, and the last one: the run ended with 0, and the
rest of its lines were lost.  A write that fails is told once, and tried again.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

from support import ProcessTest, Started, raw_lines


class FullDisk(ProcessTest):
    """A limit on the size of files fails writes as a full disk does, and can be lifted."""

    def start_one(self, steps: int) -> tuple[Started, int]:
        config = self.config(
            mesh={"pipe": 1, "data": 1}, run={"steps": steps}, steps_per_print=100_000
        )
        run = self.start_train(config, "run")
        run.await_step(3)
        return run, run.ranks()[0]

    def limit(self, pid: int, size: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def test_lines_wait_until_there_is_room(self) -> None:
        run, pid = self.start_one(steps=600)
        metrics = self.folder / "run/metrics.jsonl"
        # Within a line, so that a part of it is written first.
        size = metrics.stat().st_size + 500
        self.limit(pid, size)
        self.await_text(run, "cannot write")
        self.assertEqual(metrics.stat().st_size, size)
        time.sleep(0.3)
        self.limit(pid, resource.RLIM_INFINITY)
        result = run.wait()
        self.assert_code(result, 0)
        self.assertEqual(result.err.count("cannot write"), 1, result.err)
        self.assertIn("is written again", result.err)
        steps = [json.loads(line)["step"] for line in raw_lines(self.folder / "run")]
        self.assertEqual(steps, [*range(1, 601), 600])

    def test_what_cannot_be_written_until_the_end_is_the_runs_error(self) -> None:
        run, pid = self.start_one(steps=300)
        # The rank's messages go to a file, too: these have room.
        self.limit(pid, 2000)
        result = run.wait()
        self.assert_code(result, 3)
        for name in ("metrics.jsonl", "loss.svg"):
            self.assertIn(f"{name}: ", result.err)
            self.assertEqual(result.err.count(f'{name}" now'), 1, result.err)
        self.assertFalse(list(Path(self.folder / "run").glob("*.tmp*")))

    def await_text(self, run: Started, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in run.output():
            self.assertLess(time.monotonic(), deadline, run.output())
            time.sleep(0.01)
