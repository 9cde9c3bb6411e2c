"""Commands on a system that refuses every call that penstock can do without, all at once.

seccomp_soak.py refuses each call alone.  Needs Linux and the standard library.
Takes over 10 s: six kinds of commands under two refusals, each a run that loads torch.
"""

from __future__ import annotations

import errno
import unittest

import refused_calls

ERRORS = ("ENOSYS", "EPERM")


class AllAtOnce(refused_calls.Errands):
    def setUp(self) -> None:
        super().setUp()
        if not refused_calls.can_refuse():
            self.skipTest("no seccomp filters on this machine")

    def all_but_the_needed(self, error: str) -> list[str]:
        needed = refused_calls.WITHOUT_ANOTHER_WAY
        return [name for name in refused_calls.ALL if (name, error) not in needed]

    def assert_right(self, which: str) -> None:
        for error in ERRORS:
            names = self.all_but_the_needed(error)
            before = refused_calls.refusal(names, getattr(errno, error))
            self.assertEqual(self.errand(which, f"{which}-{error}", before), "right")

    def test_training_and_what_is_saved(self) -> None:
        self.prepare()
        self.assert_right("train")

    def test_going_on(self) -> None:
        self.prepare()
        self.assert_right("resume")

    def test_a_rank_that_is_killed_ends_the_others(self) -> None:
        self.prepare()
        self.assert_right("kill")

    def test_tokenizing(self) -> None:
        self.prepare()
        if not self.python:
            self.skipTest("no Python with tokenizers; name one with PENSTOCK_TORCH_PYTHON")
        self.assert_right("tokenize")

    def test_ranks_of_several_hosts(self) -> None:
        self.prepare()
        self.assert_right("run")

    def test_parameters_in_files(self) -> None:
        self.assert_right("offload")

    def test_what_has_no_other_way_says_so(self) -> None:
        for name, error in sorted(refused_calls.WITHOUT_ANOTHER_WAY):
            before = refused_calls.refusal([name], getattr(errno, error))
            line = self.errand("offload", f"{name}-{error}", before)
            self.assertIn({"ENOSYS": "not implemented", "EPERM": "not permitted"}[error], line)


if __name__ == "__main__":
    unittest.main(verbosity=2)
