#!/usr/bin/env python3
"""What is no layer and no loss is refused by one line of the compiler each, and it is ours.

Usage: refused_test.py BUILD_FOLDER.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import compiling

SOURCE = Path(__file__).resolve().with_name("refused.cpp")
OURS = "static assertion failed: penstock: "


def main(build: str) -> None:
    told = compiling.check(Path(build), SOURCE).stderr
    errors = [line for line in told.splitlines() if " error: " in line]
    others = [line for line in errors if OURS not in line]
    assert not others, "\n".join(others)
    lines = SOURCE.read_text().splitlines()
    refused = {number for number, line in enumerate(lines, 1) if line.endswith("// refused")}
    places = re.findall(rf"{SOURCE.name}:(\d+):\d+:\s+required from here", told)
    missing = refused - {int(place) for place in places}
    assert not missing, f"lines {sorted(missing)} of {SOURCE.name} compile"
    assert len(errors) == len(refused), "\n".join(errors)
    print(f"{len(errors)} forms are refused, by one line each")


if __name__ == "__main__":
    main(*sys.argv[1:])
