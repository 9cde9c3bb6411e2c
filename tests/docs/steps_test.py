#!/usr/bin/env python3
"""Runs every step of docs/cpp.md, which the build has compiled.

Usage: steps_test.py ROOT PROGRAM PENSTOCK.  The last step needs a folder and a corpus: it is
examples/cpp/finetune_llama, which the test "consumer" runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import steps

LAST = 10


def losses(*command: str | Path, cwd: str) -> list[float]:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]


def main(root: str, program: str, penstock: str) -> None:
    page = steps.programs((Path(root) / "docs/cpp.md").read_text())
    assert len(page) == LAST + 1, f"{len(page) - 1} steps"
    example = (Path(root) / "examples/cpp/finetune_llama/main.cpp").read_text()
    assert page[LAST] == example, "the last step is another program than the example"
    with tempfile.TemporaryDirectory(prefix="penstock-steps-") as folder:
        of_step = [losses(program, step, cwd=folder) for step in range(9)]
        again = losses(program, 8, cwd=folder)
        (Path(folder) / "processes").mkdir()
        launched = losses(
            penstock, "launch", "--nproc", 4, "--", program, 9, cwd=f"{folder}/processes"
        )
    for step, those in enumerate(of_step):
        assert len(those) == 4 and those[-1] < those[0], (step, those)
    for step in (2, 3, 4):  # Stages, replicas and ZeRO change roundings at the most.
        assert all(abs(a - b) < 1e-4 for a, b in zip(of_step[1], of_step[step], strict=True))
    assert again == [], f"a run that is over is resumed, and trains: {again}"
    assert launched == of_step[8], "processes give what threads give"
    print(f"{len(page)} programs, and {LAST} of them ran")


if __name__ == "__main__":
    main(*sys.argv[1:])
