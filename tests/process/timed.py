"""Runs the unit tests of a file, and prints the time of each: timed.py FILE [-k PATTERN].

unittest itself can do that from Python 3.12 on.
"""

from __future__ import annotations

import sys
import time
import unittest
from pathlib import Path


class TimedResult(unittest.TextTestResult):
    """Prints "test_x (module.Class.test_x) in 1.23 s" behind each test's own line."""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.started = time.monotonic()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        name = str(test).split("\n")[0]
        self.stream.writeln(f"{name} in {time.monotonic() - self.started:.2f} s")


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(file.parent))
    unittest.main(
        module=file.stem,
        argv=[str(file), *sys.argv[2:]],
        testRunner=unittest.TextTestRunner(resultclass=TimedResult, verbosity=2),
    )
