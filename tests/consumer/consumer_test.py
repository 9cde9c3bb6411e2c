#!/usr/bin/env python3
"""Installs a build of penstock, moves it, and builds and runs the project beside this file with it.

Usage: consumer_test.py CMAKE BUILD_FOLDER TORCH_DIR.  Everything happens in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        line = " ".join(str(word) for word in command)
        sys.exit(f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(cmake: str, build: str, torch: str) -> None:
    source = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="penstock-consumer-") as name:
        folder = Path(name)
        run(cmake, "--install", build, "--prefix", folder / "installed")
        prefix = (folder / "installed").rename(folder / "moved")
        version = run(prefix / "bin/penstock", "--version")
        print(version, end="")
        assert "torch" in version, version
        for path in prefix.rglob("*.cmake"):
            text = path.read_text()
            for place in (build, str(folder / "installed")):
                assert place not in text, f"{path} names {place}"
        run(
            *(cmake, "-S", source, "-B", folder / "build"),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG",  # Compiled once, run for a moment.
            *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTorch_DIR={torch}"),
        )
        run(cmake, "--build", folder / "build")
        run(folder / "build/consumer")
    print("installed, moved, built against, and trained: same losses as the plain loop")


if __name__ == "__main__":
    main(*sys.argv[1:])
