#!/usr/bin/env python3
"""The programs of docs/cpp.md: the first, and what each diff makes of the one before.

Usage: steps.py PAGE OUTPUT.cpp.  Writes all of them as one source, each in a namespace of its own,
and a main() that runs the one whose number is its first argument.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def lines_of(hunk: list[str], marks: str) -> list[str]:
    return [line[1:] for line in hunk if line[:1] in marks]


def applied(program: list[str], hunk: list[str], where: str) -> list[str]:
    """The hunk's lines as they were must be in the program, once."""
    hunk = [line or " " for line in hunk]
    old, new = lines_of(hunk, " -"), lines_of(hunk, " +")
    places = [i for i in range(len(program)) if program[i : i + len(old)] == old]
    if len(places) != 1:
        lines = "\n".join(old)
        sys.exit(f"{where}: {len(places)} places in the program have these lines:\n{lines}")
    return program[: places[0]] + new + program[places[0] + len(old) :]


def programs(page: str) -> list[str]:
    blocks = re.findall(r"```(cpp|diff)\n(.*?)```", page, re.DOTALL)
    program = blocks[0][1].splitlines()
    steps = [program]
    for number, (_, diff) in enumerate(blocks[1:], 1):
        for hunk in diff.split("@@\n"):
            program = applied(program, hunk.splitlines(), f"step {number}")
        steps.append(program)
    return ["\n".join(step) + "\n" for step in steps]


def together(steps: list[str]) -> str:
    includes = sorted({line for step in steps for line in step.splitlines() if "#include" in line})
    text = "".join(f"{line}\n" for line in includes)
    for number, step in enumerate(steps):
        body = "".join(f"{line}\n" for line in step.splitlines() if "#include" not in line)
        text += f"namespace step_{number} {{\n{body.replace('int main(', 'void run(')}}}\n"
    cases = "".join(
        f"  if (std::atoi(argv[1]) == {number}) {call_of(number, step)};\n"
        for number, step in enumerate(steps)
    )
    return f"{text}int main(int, char** argv) {{\n{cases}}}\n"


def call_of(number: int, step: str) -> str:
    arguments = "1, argv + 1" if "int main(int" in step else ""
    return f"step_{number}::run({arguments})"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(together(programs(Path(sys.argv[1]).read_text())))
