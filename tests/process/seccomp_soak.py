#!/usr/bin/env python3
"""Refuses each of some 30 system calls to each of some commands, with ENOSYS and with EPERM.

Each command does what it does otherwise, or says in one line why not; none hangs, and no process
stays.  Prints a line per call and a summary.  Needs Linux and the standard library; a Python with
torch and tokenizers (PENSTOCK_TORCH_PYTHON) for the command that tokenizes.
"""

from __future__ import annotations

import argparse
import errno
import sys
import time
import unittest

import refused_calls

ERRORS = ("ENOSYS", "EPERM")


class Campaign(refused_calls.Errands):
    calls: tuple[str, ...] = ()
    errands: tuple[str, ...] = ()

    def runTest(self) -> None:  # noqa: N802
        self.prepare()
        self.right, self.told, self.wrong = 0, 0, 0
        for call in self.calls:
            for error in ERRORS:
                self.refuse(call, error)
        print(f"{self.right} right, {self.told} told in a line, {self.wrong} wrong", flush=True)
        self.assertEqual(self.wrong, 0)

    def refuse(self, call: str, error: str) -> None:
        before = refused_calls.refusal([call], getattr(errno, error))
        began = time.monotonic()
        said = {}
        for which in self.errands:
            try:
                said[which] = self.errand(which, f"{which}-{call}-{error}", before)
            except AssertionError as failure:
                self.end_all()
                said[which] = f"WRONG: {failure}"
            self.count(said[which], (call, error) in refused_calls.WITHOUT_ANOTHER_WAY)
        others = [f"{which}: {line}" for which, line in said.items() if line != "right"]
        print(f"{call} {error}: {time.monotonic() - began:.0f} s", *others, sep="\n  ", flush=True)

    def count(self, line: str, may_be_told: bool) -> None:
        if line == "right":
            self.right += 1
        elif may_be_told and not line.startswith("WRONG"):
            self.told += 1
        else:
            self.wrong += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--call", action="append", choices=refused_calls.ALL)
    parser.add_argument("--errand", action="append", choices=Campaign.NAMES)
    options = parser.parse_args()
    if not refused_calls.can_refuse():
        print("skipped: no seccomp filters on this machine")
        return 77
    Campaign.calls = tuple(options.call or refused_calls.ALL)
    Campaign.errands = tuple(options.errand or Campaign.NAMES)
    result = unittest.TestResult()
    Campaign().run(result)
    for _, text in result.failures + result.errors:
        print(text, flush=True)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
