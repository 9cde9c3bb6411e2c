"""tools/torch_matrix keeps the table of docs/install.md: a row for each version, in their order."""

import sys
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load():
    loader = SourceFileLoader("torch_matrix", str(ROOT / "tools/torch_matrix"))
    module = module_from_spec(spec_from_loader("torch_matrix", loader))
    sys.modules["torch_matrix"] = module  # Where dataclasses look for it.
    loader.exec_module(module)
    return module


class TorchMatrixTest(unittest.TestCase):
    def test_a_row_replaces_that_of_its_version(self):
        matrix = load()
        page = f"# Page\n{matrix.BEGIN}{matrix.HEAD}{matrix.END}The end.\n"
        for torch, result in [("2.13.0", "builds"), ("2.9.1", "builds"), ("2.13.0", "fails: a|b")]:
            page = matrix.with_row(page, matrix.Row(torch, "2026-11-22", "all", result))
        rows = "| 2.9.1 | 2026-11-22 | all | builds |\n| 2.13.0 | 2026-11-22 | all | fails: a/b |\n"
        expected = f"# Page\n{matrix.BEGIN}{matrix.HEAD}{rows}{matrix.END}The end.\n"
        self.assertEqual(page, expected)

    def test_the_page_has_the_table(self):
        matrix = load()
        page = matrix.PAGE.read_text(encoding="utf-8")
        self.assertIn(matrix.BEGIN + matrix.HEAD, page)
        self.assertIn(matrix.END, page)


if __name__ == "__main__":
    unittest.main()
