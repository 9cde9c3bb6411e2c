"""Failures that a user asks for, and runs that go on with fewer ranks.

Takes over 10 s: many runs of four ranks, and each rank loads torch.  Standard library only.
"""

from __future__ import annotations

import unittest

import support
from comebacks import ComebackTest, places

# So that a rank of each comes to every place: two stages, two replicas, files of all kinds.
EVERYWHERE = {
    "zero_optimization": {"stage": 1},
    "checkpoint": {"save_interval": 2},
    "run": {"steps": 4, "eval_interval": 2, "eval_batches": 1, "sample_bytes": 2},
    # The second window is the first that may change the program.
    "schedule": {"adapt": True, "window_steps": 1, "adapt_gain": 0},
}


class Injected(ComebackTest):
    def test_every_place_is_come_to(self) -> None:
        config = self.training(**EVERYWHERE)
        self.assert_code(self.train(config, "--run", "run", "--save", "weights"), 0)
        result = self.run_words(support.PENSTOCK, "train", config, "--inject", "kill:rank=0,at=?")
        self.assert_code(result, 2)
        words = places(result.text)
        self.assertIn("save", words)
        faults = [f"delay:rank=3,at={word},seconds=0" for word in [*words, "B", "0F1", "SEND_B"]]
        faults += ["delay:rank=3,at=save,seconds=0.001", "kill:rank=0,at=SEND_B"]
        asked = [word for fault in faults for word in ("--inject", fault)]
        more = ["--run", "run", "--resume", "auto", "--steps", "8", "--save", "weights"]
        result = self.train(config, *more, *asked)
        self.assert_code(result, 0)
        for word in [*words, "B", "SEND_B"]:
            self.assertRegex(result.err, rf"injected: delay:rank=3(,at={word})?,seconds=0, at ")
        self.assertIn("injected: delay:rank=3,at=save,seconds=0.001, at ", result.err)
        # Stage 0 sends none.
        self.assertIn("not injected: kill:rank=0,at=SEND_B: the rank never came", result.err)
        self.assertIn("not injected: delay:rank=3,at=0F1,seconds=0: the rank never", result.err)

    def test_a_killed_rank_comes_back(self) -> None:
        config = self.training(run={"steps": 100})
        whole = self.undisturbed(config)
        result = self.train(
            config,
            *("--run", "killed", "--inject", "kill:rank=2,step=57,at=SEND_B"),
            *("--inject", "kill:rank=1,at=save,start=2"),
        )
        self.assert_code(result, 0)
        self.assertRegex(result.err, r'SEND_B, at "1SEND_B0" of step 57\n')
        self.assert_came_back(result.text, times=2)
        self.assert_same(whole, self.folder / "killed")
        self.assert_nothing_left()

    def test_a_stopped_rank_is_named(self) -> None:
        config = self.training(launch={"heartbeat_seconds": 2, "restarts": 0})
        fault = "stop:rank=1,step=40,at=save,after=0.001"
        result = self.train(config, "--run", "stopped", "--inject", fault)
        self.assert_code(result, 5)
        self.assertRegex(result.err, r"penstock: rank 1 stopped answering for 2\.\d s")
        self.assert_nothing_left()

    def test_an_exception_is_the_rank_s_own(self) -> None:
        result = self.train(self.training(), "--inject", "exception:rank=3,step=5,at=F")
        self.assert_code(result, 1)
        self.assertIn("an injected exception (exception:rank=3,step=5,at=F)", result.err)
        self.assertNotIn("starting the run again", result.err)

    def test_a_full_disk_costs_one_save(self) -> None:
        config = self.training(run={"steps": 100})
        whole = self.undisturbed(config)
        result = self.train(config, "--run", "full", "--inject", "enospc:rank=2,step=40,at=save")
        self.assert_code(result, 0)
        self.assertRegex(result.err, r"step 40 is not saved: rank 2: cannot write .*No space left")
        self.assertIn("step 80 saved", result.err)
        self.assert_same(whole, self.folder / "full")
        config = self.training("stop.json", checkpoint={"on_failure": "stop"})
        result = self.train(config, "--run", "stop", "--inject", "enospc:rank=2,step=80,at=save")
        self.assert_code(result, 3)
        self.assertRegex(self.checkpoint("verify", "stop").out, r"0040: as it was written\n$")

    def test_a_rank_that_is_not_there_is_refused(self) -> None:
        result = self.train(self.training(), "--inject", "kill:rank=4")
        self.assert_code(result, 2)
        self.assertIn("--inject kill:rank=4: the run has ranks 0 to 3", result.err)


ANEW = {"numerics": {"invariant": True}, "pipeline": {"activation_checkpoint_interval": 1}}


class Elastic(ComebackTest):
    """Where layers are computed again nobody takes a lost rank's microbatches in its place."""

    LOST = ("--inject", "kill:rank=3,step=50")

    def test_a_run_goes_on_with_fewer_ranks(self) -> None:
        config = self.training(**ANEW, run={"steps": 100})
        whole = self.undisturbed(config)
        more = ["--elastic", "2", "--set", "launch.restarts=1"]
        again = ("--inject", "kill:rank=3,start=2")
        result = self.train(config, "--run", "fewer", *more, *self.LOST, *again)
        self.assert_code(result, 0)
        changes = "pipe(2) x data(1) for pipe(2) x data(2), 8 microbatches a replica for 4"
        self.assertIn(f"penstock: going on with 2 ranks: {changes}; 8 samples a step", result.err)
        self.assertIn("config gradient_accumulation_steps was ", result.err)
        self.assert_came_back(result.text, times=1)
        self.assert_same(whole, self.folder / "fewer")
        self.assert_nothing_left()

    def test_it_goes_on_with_no_fewer_than_it_may(self) -> None:
        config = self.training(**ANEW, launch={"restarts": 0})
        result = self.train(config, "--run", "run", "--elastic", "3", *self.LOST)
        self.assert_code(result, 4)
        self.assertIn("penstock: no layout of 3 ranks takes as many samples a step", result.err)
        result = self.train(config, "--elastic", "5")
        self.assert_code(result, 2)
        self.assertIn("launch.ranks_min 5 (--elastic): the run has 4 ranks", result.err)

    @unittest.skipUnless(support.TORCH_PYTHON, "no torch for torchrun")
    def test_torchrun_starts_fewer(self) -> None:
        config = self.training(mesh={"pipe": 2, "data": 2}, run={"steps": 60})
        self.assert_code(self.train(config, "--run", "run", "--steps", "40"), 0)
        result = self.run_words(
            *(support.TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--no-python", "--", support.PENSTOCK, "train", config),
            *("--run", "run", "--resume", "auto", "--elastic", "2"),
            *("--inject", "kill:rank=3"),  # Who is not there any more.
        )
        self.assert_code(result, 0)
        self.assertRegex(result.err, r"penstock: pipe\(2\) x data\(1\) for pipe\(2\) x data\(2\)")
        self.assertIn("penstock: resumed after step 40", result.err)


if __name__ == "__main__":
    unittest.main()
