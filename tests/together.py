#!/usr/bin/env python3
"""Puts test files into one source, so that the headers that they share are compiled once.

Usage: together.py OUT FIRST FILES...  Each file's unnamed namespace gets a named one around it, by
its number from FIRST on: files may give their helpers the same names.  Places in messages are those
of the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

BEGIN, END = "namespace {", "}  // namespace"


def put_together(first: int, files: list[Path]) -> str:
    parts = []
    for number, file in enumerate(files, first):
        lines = [f'#line 1 "{file}"', *file.read_text(encoding="utf-8").split("\n")]
        named = {BEGIN: f"namespace file_{number} {{ {BEGIN}", END: "}" + END}
        parts.append("\n".join(named.get(line, line) for line in lines))
    return "\n".join(parts)


if __name__ == "__main__":
    out, first, *files = sys.argv[1:]
    Path(out).write_text(put_together(int(first), list(map(Path, files))), encoding="utf-8")
