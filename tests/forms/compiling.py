"""How a program of a user's own is compiled, for sources of a test: checked, without code."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path


def check(build: Path, source: Path) -> subprocess.CompletedProcess:
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith("tests/rank/own_program.cpp"):
            words = shlex.split(entry["command"])
            words = [*words[: words.index("-o")], "-fsyntax-only", str(source)]
            return subprocess.run(
                words, cwd=entry["directory"], text=True, capture_output=True, check=False
            )
    raise LookupError("compile_commands.json lacks tests/rank/own_program.cpp")
