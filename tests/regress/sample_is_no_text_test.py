"""The generated sample was printed as raw bytes, which are no UTF-8: a program that read the output
failed.  Standard output is text; the file keeps the bytes.
"""

from __future__ import annotations

import subprocess

from support import PENSTOCK, ProcessTest


class Sample(ProcessTest):
    def test_is_text_on_standard_output_and_bytes_in_the_file(self) -> None:
        # An untrained model writes every byte.
        config = self.config(
            mesh={"pipe": 1, "data": 1}, run={"steps": 1, "sample_bytes": 400, "eval_batches": 1}
        )
        run = subprocess.run(
            [PENSTOCK, "train", config, "--run", "run"],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        told = run.stdout.decode()  # Raises for what is no UTF-8.
        self.assertIn("\N{REPLACEMENT CHARACTER}", told)
        controls = {c for c in told if (c < " " and c not in "\n\t") or c == "\x7f"}
        self.assertEqual(controls, set(), "what drives a terminal")
        sample = (self.folder / "run/sample.txt").read_bytes()
        self.assertEqual(len(sample), 16 + 400)
        with self.assertRaises(UnicodeDecodeError):
            sample.decode()
