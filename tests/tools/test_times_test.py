"""tools/test_times finds the slow tests in a log that ctest wrote here."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]

LOG = """\
1/3 Testing: runtime.Executor
[       OK ] Executor.Runs (1500 ms)
[       OK ] All/Executor.Repeats/3, where GetParam() = 3 ({seconds}000 ms)
[----------] 2 tests from Executor (99999 ms total)
<end of output>
Test time =  30.00 sec
----------------------------------------------------------
2/3 Testing: python.pipe
1.25s setup    tests/python/pipe_test.py::test_all
21.00s call     tests/python/pipe_test.py::test_all
Test time =  23.00 sec
3/3 Testing: process.run
test_end (run_test.Run.test_end) ... ok
test_end (run_test.Run.test_end) in 2.50 s
Test time =   3.00 sec
"""


class TestTimesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)
        (self.build / "Testing/Temporary").mkdir(parents=True)
        (self.build / "CTestTestfile.cmake").write_text(
            'add_test(python.pipe "true")\nadd_test(runtime.Executor "true")\n'
            "set_tests_properties(python.pipe PROPERTIES LABELS long)\n"
        )

    def times(self, seconds, *arguments):
        log = self.build / "Testing/Temporary/LastTest.log"
        log.write_text(LOG.format(seconds=seconds))
        return subprocess.run(
            [sys.executable, ROOT / "tools/test_times", self.build, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_the_cases_of_every_kind_of_test_are_found(self):
        output = self.times(7).stdout
        self.assertIn("4 cases in 3 tests, 56 s", output)
        self.assertIn("    22.2 s  python.pipe: tests/python/pipe_test.py::test_all\n", output)
        self.assertIn("     7.0 s  runtime.Executor: All/Executor.Repeats/3\n", output)
        self.assertIn("     2.5 s  process.run: test_end (run_test.Run.test_end)\n", output)

    def test_it_can_be_asked_twice(self):
        self.times(7)
        log = self.build / "Testing/Temporary/LastTest.log"
        self.assertEqual(log.read_text(), LOG.format(seconds=7))

    @unittest.skipUnless(shutil.which("ctest"), "needs ctest")
    def test_a_slow_case_of_the_quick_tier_fails(self):
        self.assertEqual(self.times(7, "--strict").returncode, 0)  # What is long may take long.
        noisy = self.times(25)
        self.assertEqual(noisy.returncode, 0)
        self.assertIn("All/Executor.Repeats/3 took 25.0 s, more than the 20 s", noisy.stderr)
        self.assertEqual(self.times(25, "--strict").returncode, 1)
        self.assertEqual(self.times(61).returncode, 1)

    def test_without_a_run_there_is_nothing_to_say(self):
        command = [sys.executable, ROOT / "tools/test_times", self.build]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("run the tests first", done.stderr)


if __name__ == "__main__":
    unittest.main()
