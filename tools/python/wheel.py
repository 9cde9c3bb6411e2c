#!/usr/bin/env python3
"""Makes wheels of what a build folder holds, without compiling anything.

Usage: wheel.py BUILD_FOLDER OUTPUT_FOLDER [DISTRIBUTION ...]; prints the path of each wheel.
penstock       the Python package and the programs; needs torch
penstock-plan  the same files but those that need torch: plans, proves, simulates and draws

Both without DISTRIBUTION.  Run by the Python for which the extension modules are built.
`pip install .` makes the first from the sources, where nothing is built yet.  Needs the standard
library and CMake.
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
REQUIREMENTS = {"penstock": "Requires-Dist: torch\n", "penstock-plan": ""}
BELOW_THE_TORCH_LINE = re.compile(r"penstock/(_runtime\..*\.so|libexec/.*)")
METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.10
{requirements}Description-Content-Type: text/markdown

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
        if path.suffix in {".py", ".pyi", ".ini"} or path.name == "py.typed"
    }


def built_files(build: Path, folder: Path) -> dict[str, Path]:
    """Extension modules and programs of the build as they are installed, without symbols."""
    command = ["cmake", "--install", str(build), "--component", "python", "--strip"]
    command += ["--prefix", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if done.returncode != 0 or not any(name.endswith(suffix) for name in files):
        sys.exit(
            f"wheel.py: {build} holds no extension modules *{suffix}: build the target "
            f"penstock_python first\n{done.stdout}{done.stderr}"
        )
    return files


def texts(name: str, version: str, tag: str) -> dict[str, str]:
    """What is in the wheel's folder of information."""
    return {
        "METADATA": METADATA.format(
            name=name,
            version=version,
            summary=found(r'description = "([^"]+)"', "pyproject.toml"),
            requirements=REQUIREMENTS[name],
            readme=(ROOT / "README.md").read_text(encoding="utf-8"),
        ),
        "WHEEL": WHEEL.format(tag=tag),
        "entry_points.txt": "[console_scripts]\npenstock = "
        + found(r'\[project.scripts\]\npenstock = "([^"]+)"', "pyproject.toml")
        + "\n",
        "licenses/LICENSE": (ROOT / "LICENSE").read_text(encoding="utf-8"),
    }


def write_wheel(name: str, built: dict[str, Path], output: Path) -> Path:
    version = found(r"project\(penstock VERSION ([0-9.]+)", "CMakeLists.txt")
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"{python}-{python}-{platform}"
    stem = f"{name.replace('-', '_')}-{version}"
    information = f"{stem}.dist-info"
    contents = {file: path.read_bytes() for file, path in python_files().items()}
    contents |= {file: path.read_bytes() for file, path in built.items()}
    contents |= {
        f"{information}/{file}": text.encode() for file, text in texts(name, version, tag).items()
    }
    record = f"{information}/RECORD"
    lines = ""
    for file, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        lines += f"{file},sha256={digest.decode()},{len(content)}\n"
    contents[record] = f"{lines}{record},,\n".encode()
    output.mkdir(parents=True, exist_ok=True)
    wheel = output / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in contents.items():
            entry = zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0))  # Same files, same wheel.
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = built[file].stat().st_mode if file in built else 0o100644
            entry.external_attr = mode << 16  # Programs stay programs.
            archive.writestr(entry, content)
    return wheel


def main(build: str, output: str, *names: str) -> None:
    unknown = sorted(set(names) - set(REQUIREMENTS))
    if unknown:
        sys.exit(f"wheel.py: no distribution {unknown[0]}; there are {', '.join(REQUIREMENTS)}")
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as staged:
        built = built_files(Path(build), Path(staged))
        plan = {file: path for file, path in built.items() if not BELOW_THE_TORCH_LINE.match(file)}
        for name in names or REQUIREMENTS:
            print(write_wheel(name, built if name == "penstock" else plan, Path(output)))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
