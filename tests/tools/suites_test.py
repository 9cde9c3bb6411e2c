"""tests/suites.cmake makes tests of the suites of a program, and loses no case.

The program is a stub that answers as GoogleTest's programs do.
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]

CASES = {
    "Plain.": ["One", "Two"],
    "Sweep/Layouts.": [
        "Same/small  # GetParam() = 2",
        "Same/large  # GetParam() = <;3>",
        "Other/0",
    ],
    "OnlyLong.": ["Alone"],
    "Fresh.": ["First", "Second"],
}

PROGRAM = """\
#!{python}
import sys
from fnmatch import fnmatchcase
asked = sys.argv[2].removeprefix("--gtest_filter=").split(":")
print("Running main() from gtest_main.cc")
for suite, cases in {cases!r}.items():
    chosen = [c for c in cases if any(fnmatchcase(suite + c.split()[0], a) for a in asked)]
    print("\\n".join([suite] * bool(chosen) + ["  " + case for case in chosen]))
"""

PARAMETERS = """\
set(target some_tests)
set(program "{program}")
set(busy "^Sweep/")
set(alone "^Fresh$")
set(long "Sweep/Layouts.*large;OnlyLong.*")
set(whole "Sweep/Layouts;Unknown")
set(parameters "{folder}/parameters.cmake")
include("{root}/tests/suites.cmake")
"""


def selected(filters: str, case: str) -> bool:
    wanted, _, unwanted = filters.partition("-")
    return any(fnmatchcase(case, each) for each in wanted.split(":")) and not any(
        fnmatchcase(case, each) for each in unwanted.split(":")
    )


class SuitesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program = self.folder / "some_tests"
        parameters = PARAMETERS.format(program=self.program, folder=folder.name, root=ROOT)
        (self.folder / "parameters.cmake").write_text(parameters)
        (self.folder / "CTestTestfile.cmake").write_text('include("parameters.cmake")\n')

    def listed(self):
        """By name: the filter, the cores, and whether it is long, which its program is told."""
        command = ["ctest", "--test-dir", str(self.folder), "--show-only=json-v1"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        found = {}
        for test in json.loads(shown.stdout)["tests"]:
            properties = {item["name"]: item["value"] for item in test["properties"]}
            filters = re.search("--gtest_filter=(.*)", "\n".join(test.get("command", ["none"])))
            is_long = "long" in properties.get("LABELS", [])
            told = "PENSTOCK_LONG_TESTS=1" in properties.get("ENVIRONMENT", [])
            self.assertEqual(told, is_long, test["name"])
            found[test["name"]] = (
                filters and filters[1],
                properties.get("PROCESSORS", 1),
                is_long,
            )
        return found

    def test_every_case_is_in_one_test(self):
        self.program.write_text(PROGRAM.format(python=sys.executable, cases=CASES))
        self.program.chmod(0o755)
        tests = self.listed()
        expected = {
            "some.Plain": ("Plain.*", 1, False),
            "some.Sweep/Layouts": ("Sweep/Layouts.*-Sweep/Layouts.Same/large", 2, False),
            "some.Sweep/Layouts.whole": ("Sweep/Layouts.*-Sweep/Layouts.Same/large", 2, True),
            "some.Sweep/Layouts.Same/large": ("Sweep/Layouts.Same/large", 2, True),
            "some.OnlyLong.Alone": ("OnlyLong.Alone", 1, True),
            "some.Fresh.First": ("Fresh.First", 1, False),
            "some.Fresh.Second": ("Fresh.Second", 1, False),
        }
        self.assertEqual(tests, expected)
        for suite, cases in CASES.items():
            for case in cases:
                name = suite + case.split()[0]
                times = 2 if suite == "Sweep/Layouts." and "large" not in name else 1
                self.assertEqual(sum(selected(f, name) for f, _, _ in tests.values()), times, name)

    def test_a_program_that_is_not_built_fails(self):
        self.assertEqual(list(self.listed()), ["some_NOT_BUILT"])


if __name__ == "__main__":
    unittest.main()
