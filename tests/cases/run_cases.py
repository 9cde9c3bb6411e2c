#!/usr/bin/env python3
"""Cases written as text: commands of penstock, and what each prints.

    tests/cases/run_cases.py FILE...

    Words about the case come first.

    --- mine.csv
    0F0,0B0
    1F0
    ---
    $ penstock verify mine.csv
    what it prints, on either output
    [1]

`--- NAME` begins an input file, perhaps in a folder, and `---` ends it.  `$` begins a command, that
runs in a folder of its own with these files; below it stands what it prints, and its exit code if
that is not 0.  Empty lines at the end of an output do not count.  A case that differs is shown as a
diff, and the exit code is 1.  With PENSTOCK_UPDATE_GOLDEN=1 the files are rewritten as the commands
print it.
PENSTOCK_BUILD: the build folder (default: build/ of this tree).  Needs the standard library only.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path(os.environ.get("PENSTOCK_BUILD", Path(__file__).parents[2] / "build")).resolve()
DEADLINE_S = 60


def run(command: str, folder: Path) -> list[str]:
    """What a command prints, line by line, and its exit code."""
    program, *words = shlex.split(command)
    if program != "penstock":
        return [f"run_cases.py: the command is {program}, must be penstock"]
    done = subprocess.run(
        [BUILD / "bin/penstock", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    lines = done.stdout.rstrip("\n").split("\n") if done.stdout.strip() else []
    return [*lines, f"[{done.returncode}]"] if done.returncode else lines


def as_run(lines: list[str], folder: Path) -> list[str]:
    """The case, with what its commands print now."""
    result: list[str] = []
    after_command = False
    rest = iter(lines)
    for line in rest:
        if line.startswith(("--- ", "$ ")) and after_command:
            result.append("")
        if line.startswith("--- "):
            content = []
            for inner in rest:
                if inner == "---":
                    break
                content.append(inner)
            path = folder / line[4:]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{each}\n" for each in content))
            result += [line, *content, "---"]
            after_command = False
        elif line.startswith("$ "):
            result += [line, *run(line[2:], folder)]
            after_command = True
        elif not after_command:
            result.append(line)
    return result


def check(path: Path) -> bool:
    expected = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if not any(line.startswith("$ ") for line in expected):
        print(f"{path}: has no command: a line that begins with $")
        return False
    with tempfile.TemporaryDirectory() as folder:
        found = as_run(expected, Path(folder))
    if found == expected:
        return True
    if os.environ.get("PENSTOCK_UPDATE_GOLDEN"):
        path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
        print(f"{path}: rewritten")
        return True
    print("\n".join(difflib.unified_diff(expected, found, str(path), "now", lineterm="")))
    return False


def main() -> int:
    passed = [check(Path(each)) for each in sys.argv[1:]]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
