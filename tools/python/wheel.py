#!/usr/bin/env python3
"""Makes a wheel of the Python package that a build folder holds, without compiling anything.

Usage: wheel.py BUILD_FOLDER OUTPUT_FOLDER; prints the wheel's path.  Run by the Python for which
the extension modules are built.  `pip install .` makes the same wheel from the sources, where
nothing is built yet.  Needs the standard library and CMake.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METADATA = """\
Metadata-Version: 2.1
Name: penstock
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: penstock tools/python/wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""


def found(pattern: str, file: str) -> str:
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"))
    if match is None:
        sys.exit(f"wheel.py: {file} has no {pattern}")
    return match[1]


def python_files() -> dict[str, Path]:
    """The package's own files, by their names in the wheel."""
    folder = ROOT / "python"
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted((folder / "penstock").rglob("*"))
        if path.suffix in {".py", ".pyi"} or path.name == "py.typed"
    }


def extension_modules(build: Path, folder: Path) -> dict[str, Path]:
    """Those of the build, as they are installed: with no path of this machine in them."""
    command = ["cmake", "--install", str(build), "--component", "python", "--prefix", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    modules = {f"penstock/{path.name}": path for path in sorted(folder.glob("penstock/*.so"))}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if done.returncode != 0 or not any(name.endswith(suffix) for name in modules):
        sys.exit(
            f"wheel.py: {build} holds no extension modules *{suffix}: build the target "
            f"penstock_python first\n{done.stdout}{done.stderr}"
        )
    return modules


def write_wheel(build: Path, output: Path) -> Path:
    version = found(r"project\(penstock VERSION ([0-9.]+)", "CMakeLists.txt")
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"{python}-{python}-{platform}"
    information = f"penstock-{version}.dist-info"
    texts = {
        f"{information}/METADATA": METADATA.format(
            version=version,
            summary=found(r'description = "([^"]+)"', "pyproject.toml"),
            readme=(ROOT / "README.md").read_text(encoding="utf-8"),
        ),
        f"{information}/WHEEL": WHEEL.format(tag=tag),
        f"{information}/licenses/LICENSE": (ROOT / "LICENSE").read_text(encoding="utf-8"),
    }
    output.mkdir(parents=True, exist_ok=True)
    wheel = output / f"penstock-{version}-{tag}.whl"
    record = ""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-wheel-") as staged,
        zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        files = python_files() | extension_modules(build, Path(staged))
        contents = {name: path.read_bytes() for name, path in files.items()}
        contents |= {name: text.encode() for name, text in texts.items()}
        for name, content in contents.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record += f"{name},sha256={digest.decode()},{len(content)}\n"
        archive.writestr(f"{information}/RECORD", f"{record}{information}/RECORD,,\n")
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(write_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
