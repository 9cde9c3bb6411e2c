"""Programs of users' own under `penstock launch`: watched as the ranks of `penstock train` are.

Of C++ (tests/rank/own_program.cpp), and of Python where PENSTOCK_TORCH_PYTHON has the package.
Takes over 10 s: runs of programs that load torch, and of Python that imports it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import unittest

import support
from support import PENSTOCK, ProcessTest

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from penstock.pipelining import PipelineStage, ScheduleGPipe

fault = sys.argv[1]
is_time = False

class Fragile(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        if is_time and fault == "throw":
            raise ValueError("the layer had enough")
        if is_time and fault == "exit":
            os._exit(7)
        if is_time and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_time and fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if rank == 1:  # The other rank waits for it.
            time.sleep(0.02)
        return self.fc(x)

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
stage = PipelineStage(Fragile(), rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.MSELoss())
x, y = torch.rand(4, 4), torch.rand(4, 4)
for step in range(1, 21):
    is_time = step == 15 and rank == 1
    if is_time and fault == "ponder":
        time.sleep(3)
    if rank == 0:
        schedule.step(x)
        print(f"step {step}", flush=True)
    else:
        schedule.step(target=y)
"""


class Faults:
    """What the launcher says of a program, whatever it is written in."""

    # A microbatch's forward, in which the faults are, in the words of its schedule.
    place = r"at step 15, instruction 1F0"

    def words(self) -> list[object]:
        raise NotImplementedError

    def launched(self, fault: str, heartbeat: float = 2) -> support.Result:
        launch = [PENSTOCK, "launch", "--nproc", 2, "--heartbeat", heartbeat, "--"]
        package = self.environment(PYTHONPATH=str(support.BUILD / "python"))
        return self.run_words(*launch, *self.words(), fault, environment=package)

    def test_it_trains(self) -> None:
        result = self.launched("none")
        self.assert_code(result, 0)
        self.assertIn("step 20", result.out)
        self.assert_nothing_left()

    def test_its_own_code_takes_as_long_as_it_takes(self) -> None:
        self.assert_code(self.launched("ponder", heartbeat=1), 0)

    def test_an_exception_is_the_cause(self) -> None:
        result = self.launched("throw")
        self.assert_code(result, 1)
        cause = support.root_causes(result.err)
        self.assertEqual(len(cause), 1, result.err)
        self.assertRegex(cause[0], rf"rank 1 failed {self.place}: .*the layer had enough")
        self.assert_nothing_left()

    def test_a_killed_rank_is_named_with_its_step(self) -> None:
        result = self.launched("kill", heartbeat=1)
        self.assert_code(result, 4)
        self.assertRegex(result.err, r"rank 1 was killed by SIGKILL; last seen at .*step \d")
        self.assert_nothing_left()

    def test_a_stopped_rank_is_named(self) -> None:
        result = self.launched("stop", heartbeat=1)
        self.assert_code(result, 5)
        self.assertRegex(result.err, r"rank 1 stopped answering for \d.*stopped.*step \d")
        self.assertLess(result.seconds, 20)
        self.assert_nothing_left()


class OfCpp(Faults, ProcessTest):
    def words(self) -> list[object]:
        return [support.BUILD / "bin/own_program"]

    def stopped(self, fault: str) -> support.Result:
        launch = [PENSTOCK, "launch", "--nproc", 2, "--"]
        started = self.start(*launch, *self.words(), fault)
        started.await_text("step 3")
        started.process.send_signal(signal.SIGTERM)
        return started.wait()

    def test_it_is_asked_to_stop_on_its_channel(self) -> None:
        result = self.stopped("polite")
        self.assert_code(result, 75)
        self.assertIn("stopped by SIGTERM", result.err)
        for rank in range(2):
            self.assertIn(f"rank {rank} ends in good order", result.out)

    def test_an_error_keeps_its_code(self) -> None:
        result = self.launched("refuse")
        self.assert_code(result, 2)
        self.assertRegex(result.err, r"rank 1 failed .*: .*the layer takes no such data")

    def test_a_shell_goes_on_after_it(self) -> None:
        """What runs in the rank's place, once the program has ended, is no business of ours."""
        program = f"{self.words()[0]} none && sleep 3 && echo copied"
        launch = [PENSTOCK, "launch", "--nproc", 2, "--heartbeat", 1, "--"]
        result = self.run_words(*launch, "sh", "-c", program)
        self.assert_code(result, 0)
        self.assertEqual(result.out.count("copied"), 2)

    def test_all_end_alike_where_one_alone_has_asked_whether_to_stop(self) -> None:
        launch = [PENSTOCK, "launch", "--nproc", 2, "--"]
        started = self.start(*launch, *self.words(), "uneven")
        started.await_text("rank 0 has asked")
        started.process.send_signal(signal.SIGINT)
        result = started.wait()
        self.assert_code(result, 130)
        self.assertIn("stopped by SIGINT", result.err)
        for rank in range(2):
            self.assertIn(f"rank {rank} ends in good order", result.out)

    def test_a_program_that_is_killed_under_a_shell_is_the_cause(self) -> None:
        launch = [PENSTOCK, "launch", "--nproc", 2, "--heartbeat", 1, "--"]
        for rest in ("echo gone on", "sleep 60"):
            result = self.run_words(*launch, "sh", "-c", f"{self.words()[0]} kill; {rest}")
            cause = support.root_causes(result.err)
            self.assertEqual(len(cause), 1, result.err)
            self.assertRegex(cause[0], r"rank 1's program ended without a word; .*step \d")
            self.assert_code(result, 4)
            self.assert_nothing_left()

    def test_an_exception_that_was_caught_is_no_place_any_more(self) -> None:
        result = self.launched("catch", heartbeat=1)
        self.assert_code(result, 4)
        self.assertRegex(
            result.err,
            r"rank 1 was killed by SIGKILL; last seen at the program's own code after step 15",
        )

    def test_a_signal_stops_who_does_not_ask(self) -> None:
        result = self.stopped("none")
        self.assert_code(result, 75)
        self.assertNotIn("step 20", result.out)


class OfPython(Faults, ProcessTest):
    def setUp(self) -> None:
        super().setUp()
        python = support.TORCH_PYTHON
        asked = [python, "-c", "import penstock._runtime"]
        package = {**os.environ, "PYTHONPATH": str(support.BUILD / "python")}
        if not python or subprocess.run(asked, env=package, check=False).returncode != 0:
            self.skipTest("no Python with penstock's package in PENSTOCK_TORCH_PYTHON")
        (self.folder / "script.py").write_text(SCRIPT)

    def test_a_code_of_its_own_is_the_runs(self) -> None:
        result = self.launched("exit")
        self.assert_code(result, 7)
        self.assertIn("rank 1 exited 7", result.err)

    def words(self) -> list[object]:
        return [support.TORCH_PYTHON, self.folder / "script.py"]


if __name__ == "__main__":
    unittest.main()
