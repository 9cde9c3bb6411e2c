#!/usr/bin/env python3
"""The public headers compile behind the macros of Qt and X11, and no header has their names.

A class of theirs may have a Trainer among its members: g++ 12 failed inside at such a class.

What they include of torch comes first, as users of torch.h protect it.  Usage: gui_macros_test.py
BUILD_FOLDER.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import compiling

ROOT = Path(__file__).resolve().parents[2]
MACROS = Path(__file__).resolve().with_name("gui_macros.h")

APPLICATION = """
class Application {
  using Layers = std::vector<penstock::nn::LayerSpec>;
  std::unique_ptr<penstock::comm::Communicator> ranks_;
  penstock::train::Trainer trainer_{{}, Layers{}, penstock::nn::Loss{}, *ranks_};
  penstock::train::Trainer other_{{.microbatches = 2}, Layers{}, penstock::nn::Loss{}, *ranks_};
};
"""


def code_of(text: str) -> str:
    """Without comments and literals."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(\\.|[^"\\\n])*"', " ", text, flags=re.DOTALL)


def check_names() -> int:
    names = re.findall(r"^#define (\w+)", MACROS.read_text(), re.MULTILINE)
    pattern = re.compile(rf"\b({'|'.join(names)})\b")
    headers = [
        path
        for folder in ("include", "penstock")
        for path in (ROOT / folder).rglob("*.h")
        if "cli" not in path.parts
    ]
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in headers
        for name in sorted(set(pattern.findall(code_of(path.read_text()))))
    ]
    assert not found, "macros of Qt or X11:\n" + "\n".join(found)
    return len(headers)


def torchs_headers(headers: list[str]) -> list[str]:
    """Those that these include, themselves or by others of ours."""
    seen, torchs = list(headers), set()
    for header in seen:
        found = [path for path in (ROOT / header, ROOT / "include" / header) if path.exists()]
        text = found[0].read_text() if found else ""
        seen += sorted(set(re.findall(r'#include "(penstock/[^"]+)"', text)) - set(seen))
        torchs |= set(re.findall(r"#include <((?:ATen|c10|torch)/[^>]+)>", text))
    return sorted(torchs)


def check_public(build: Path) -> int:
    public = re.findall(r"^\| `(penstock/\S+\.h)`", (ROOT / "docs/headers.md").read_text(), re.M)
    includes = [f"#include <{header}>" for header in torchs_headers(public)]
    includes += [f'#include "{MACROS}"']
    includes += [f'#include "{header}"' for header in public]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "public.cpp"
        source.write_text("\n".join(includes) + APPLICATION)
        told = compiling.check(build, source)
    assert told.returncode == 0, told.stderr
    return len(public)


def main(build: str) -> None:
    print(f"{check_names()} headers have none of the names")
    print(f"{check_public(Path(build))} public headers compile behind the macros")


if __name__ == "__main__":
    main(*sys.argv[1:])
