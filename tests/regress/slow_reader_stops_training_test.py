"""A reader that stopped reading (a pager, Ctrl-S, a full pipe) ended training after 30 s: ranks and
the launcher wrote to their standard streams themselves, and waited for the reader.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time

from support import PENSTOCK, ProcessTest, raw_lines

PIPE_BYTES = 4096  # The smallest that there is.
STEPS = 400


class SlowReader(ProcessTest):
    def test_training_goes_on_and_stops_when_asked(self) -> None:
        config = self.config(
            mesh={"pipe": 2, "data": 1},
            run={"steps": 1_000_000},
            launch={"heartbeat_seconds": 2},
            steps_per_print=1,
        )
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        run = subprocess.Popen(
            [PENSTOCK, "train", config, "--run", "run", "--save", "run/w"],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        deadline = time.monotonic() + 60
        while len(raw_lines(self.folder / "run")) < STEPS:
            self.assertIsNone(run.poll(), "it ended")
            self.assertLess(time.monotonic(), deadline, "a step waited for the reader")
            time.sleep(0.05)
        # The launcher, too, has something to say, and must not wait before it acts.
        run.send_signal(signal.SIGTERM)
        index = self.folder / "run/w/model.safetensors.index.json"
        while not index.exists():
            self.assertLess(time.monotonic(), deadline, "stopping waited for the reader")
            time.sleep(0.05)
        text = b""
        while block := os.read(reader, 65536):
            text += block
        self.assertEqual(run.wait(), 75)
        told = text.decode()
        for step in range(1, STEPS):
            self.assertIn(f"step {step}/", told)
        self.assertIn("stopping after the current step", told)
        self.assertIn("weights saved", told)
