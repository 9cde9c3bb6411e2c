"""What `pip install .` calls: scikit-build-core, told where the torch is that is installed.

pip builds in an environment of its own by default, which is the same Python with what is installed
hidden.  A build against another torch than that would break when it is imported.  So the torch of
this Python is looked up behind pip's back, and handed to CMake.  Other tools build in a Python of
their own, where there is none: then the build ends at once, with the command to use.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Settings = dict[str, Any] | None

SCIKIT_BUILD = "scikit-build-core>=1.1"
COMMAND = "pip install torch scikit-build-core && pip install --no-build-isolation ."
FIND_TORCH = """\
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")
"""


def torch_folder() -> str:
    """The folder in which this Python has torch; "" where it has none."""
    for flags in ([], ["-E"]):  # -E ignores PYTHONPATH, by which pip hides what is installed.
        command = [sys.executable, *flags, "-c", FIND_TORCH]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if folder := done.stdout.strip():
            return folder
    return ""


def checked_torch() -> Path:
    """The folder of torch; ends the build where there is none."""
    folder = torch_folder()
    if not folder:
        sys.exit(
            f"penstock is built against the torch that is installed, and the Python of "
            f"{sys.prefix} has none; run: {COMMAND}"
        )
    return Path(folder)


def _backend() -> Any:
    if importlib.util.find_spec("scikit_build_core") is None:
        sys.exit(f"penstock is built by scikit-build-core, which is not there; run: {COMMAND}")
    from scikit_build_core import build

    return build


def _with_torch(settings: Settings) -> dict[str, Any]:
    """The settings of whoever builds, who may name another torch."""
    place = checked_torch() / "share/cmake/Torch"
    # Without it, make would run one compiler after the other.
    done = subprocess.run(["./setup.sh", "--jobs"], capture_output=True, text=True, check=False)
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", done.stdout.strip() or "1")
    return {"cmake.define.Torch_DIR": str(place), **(settings or {})}


def get_requires_for_build_wheel(settings: Settings = None) -> list[str]:
    checked_torch()
    return [SCIKIT_BUILD]


def get_requires_for_build_editable(settings: Settings = None) -> list[str]:
    checked_torch()
    return [SCIKIT_BUILD]


def get_requires_for_build_sdist(settings: Settings = None) -> list[str]:
    return [SCIKIT_BUILD]


def prepare_metadata_for_build_wheel(folder: str, settings: Settings = None) -> str:
    return str(_backend().prepare_metadata_for_build_wheel(folder, settings))


def prepare_metadata_for_build_editable(folder: str, settings: Settings = None) -> str:
    return str(_backend().prepare_metadata_for_build_editable(folder, settings))


def build_wheel(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    return str(_backend().build_wheel(folder, _with_torch(settings), metadata))


def build_editable(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    return str(_backend().build_editable(folder, _with_torch(settings), metadata))


def build_sdist(folder: str, settings: Settings = None) -> str:
    return str(_backend().build_sdist(folder, settings))
