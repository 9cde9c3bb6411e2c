"""tests/cases/run_cases.py: a case that differs fails and is shown, and can be rewritten."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RUN = Path(__file__).parents[1] / "cases/run_cases.py"
CASE = "A case.\n\n--- a.csv\n0B0\n---\n$ penstock verify a.csv\n"
WRONG = CASE + "verified, of course\n"


class RunCasesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name, "case.txt")

    def run_cases(self, text, **variables):
        self.file.write_text(text)
        return subprocess.run(
            [sys.executable, RUN, self.file],
            env={**os.environ, "PENSTOCK_UPDATE_GOLDEN": "", **variables},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )

    def test_a_case_that_differs_is_shown(self):
        done = self.run_cases(WRONG)
        self.assertEqual(done.returncode, 1)
        self.assertIn("-verified, of course", done.stdout)
        self.assertIn("+0F0 is missing [S004]", done.stdout)
        self.assertIn("+[1]", done.stdout)

    def test_a_case_is_rewritten_and_passes_then(self):
        self.assertEqual(self.run_cases(WRONG, PENSTOCK_UPDATE_GOLDEN="1").returncode, 0)
        text = self.file.read_text()
        self.assertTrue(
            text.startswith("A case.\n\n--- a.csv\n0B0\n---\n$ penstock verify a.csv\n")
        )
        self.assertTrue(text.endswith("[1]\n"), text)
        self.assertEqual(self.run_cases(text).returncode, 0)

    def test_a_file_without_a_command_fails(self):
        self.assertEqual(self.run_cases("Words alone.\n").returncode, 1)

    def test_what_is_no_penstock_does_not_run(self):
        self.assertEqual(self.run_cases("$ touch made\n").returncode, 1)


if __name__ == "__main__":
    unittest.main()
