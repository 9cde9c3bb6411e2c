"""How a test of runtime_tests is compiled, for sources of a test's own: checked, without code."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path


def check(build: Path, source: Path) -> subprocess.CompletedProcess:
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith("tests/nn/model_test.cpp"):
            words = shlex.split(entry["command"])
            words = [*words[: words.index("-o")], "-fsyntax-only", str(source)]
            return subprocess.run(
                words, cwd=entry["directory"], text=True, capture_output=True, check=False
            )
    raise LookupError("compile_commands.json lacks tests/nn/model_test.cpp")
