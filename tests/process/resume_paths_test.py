"""What `--resume PATH` takes, and what a run that is resumed with another length says.

Needs the standard library.
"""

from __future__ import annotations

import re
import unittest

import comebacks
import support


class Paths(comebacks.ComebackTest):
    def small(self, **changes: object) -> object:
        return self.training(
            "small.json",
            **support.merged(
                {"mesh": {"pipe": 1, "data": 1}, "checkpoint": {"save_interval": 2}}, changes
            ),
        )

    def assert_resumes(self, path: str, step: int) -> None:
        name = "resumed-" + re.sub(r"\W", "-", path)
        words = ("--run", name, "--steps", 6, "--resume", path)
        result = self.train(self.small(), *words)
        self.assert_code(result, 0)
        self.assertIn(f"resumed after step {step} from", result.err)
        self.assertEqual(support.losses(self.folder / name)[-2:], self.expected[-2:])

    def test_a_path_is_taken_as_checkpoint_show_takes_it(self) -> None:
        whole = self.train(self.small(), "--run", "whole", "--steps", 6)
        self.assert_code(whole, 0)
        self.expected = support.losses(self.folder / "whole")
        self.assert_code(self.train(self.small(), "--run", "r", "--steps", 4), 0)
        (self.folder / "link").symlink_to(self.folder / "r")
        (self.folder / "step").symlink_to(self.folder / "r/checkpoints/step-00000002")
        for path, step in (
            ("r", 4),
            ("r/", 4),
            ("r/checkpoints", 4),
            ("link/", 4),
            ("r/checkpoints/step-00000002/", 2),
            ("step", 2),
        ):
            with self.subTest(path):
                self.assert_resumes(path, step)

    def test_the_newest_whole_one_of_a_run_is_taken(self) -> None:
        self.assert_code(self.train(self.small(), "--run", "r", "--steps", 4), 0)
        (self.folder / "r/checkpoints/step-00000004/manifest.json").write_text("{")
        result = self.train(self.small(), "--run", "again", "--steps", 6, "--resume", "r")
        self.assert_code(result, 0)
        self.assertIn("a newer checkpoint is passed over", result.err)
        self.assertIn("resumed after step 2 from", result.err)

    def test_a_path_without_checkpoints_is_told_before_ranks_start(self) -> None:
        (self.folder / "empty").mkdir()
        for path, said in (
            ("nowhere", '"nowhere" is not a directory'),
            ("empty", 'no checkpoint in "empty"'),
        ):
            result = self.train(self.small(), "--run", "r", "--resume", path)
            self.assert_code(result, 2)
            self.assertIn(said, result.err)
            self.assertFalse((self.folder / "r").exists())

    def test_a_rate_that_jumps_is_told(self) -> None:
        scheduler = {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2}}
        config = self.small(scheduler=scheduler)
        self.assert_code(self.train(config, "--run", "r", "--steps", 4), 0)
        result = self.train(config, "--run", "r", "--steps", 12, "--resume", "auto")
        self.assert_code(result, 0)
        line = next(line for line in result.err.splitlines() if "the learning rate goes" in line)
        self.assertIn("run.steps was 4, is 12", line)
        rates = re.search(r"from (\S+) at step 4 to (\S+) at step 5:", line)
        steps = [line for line in comebacks.course_of(self.folder / "r") if "lr" in line]
        self.assertEqual([float(rate) for rate in rates.groups()], [s["lr"] for s in steps[3:5]])

    def test_a_rate_that_does_not_jump_is_not_told(self) -> None:
        params = {"warmup_num_steps": 2, "total_num_steps": 20}
        config = self.small(scheduler={"type": "WarmupCosineLR", "params": params})
        self.assert_code(self.train(config, "--run", "r", "--steps", 4), 0)
        result = self.train(config, "--run", "r", "--steps", 8, "--resume", "auto")
        self.assert_code(result, 0)
        self.assertNotIn("the learning rate goes", result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
