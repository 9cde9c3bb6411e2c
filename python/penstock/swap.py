"""Runs a script on penstock that was written for torch or DeepSpeed, as it stands.

    python -m penstock.swap train.py --lr 0.1
    torchrun --nproc-per-node 2 -m penstock.swap train.py --lr 0.1
    python -m penstock.swap -m package.train --lr 0.1
    python -m penstock.swap --check train.py

While the script runs, and in the processes that multiprocessing spawns from it, what it imports
from torch.distributed.pipelining is penstock.pipelining, with its modules schedules, stage and
microbatch; and deepspeed is penstock, with those modules that penstock has under the same names,
whether DeepSpeed is installed or not.  importlib.metadata tells of a package deepspeed, of the
version whose names penstock follows: libraries ask for it before they use the package.  And
Accelerate counts the ranks of a run on CPUs (accelerate.py).

--check runs nothing: it reads the script and prints which of their names it uses, in which lines,
and what becomes of each; of members of engines, schedules and stages, too, where it is certain
that they are such; and where transformers or Accelerate call DeepSpeed for it.
Exit codes: 0: all work, though some may differ; 1: some are refused, or not known; 2: there is no
such script, or it is no Python.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from penstock import _compatibility, _standard_streams
from penstock._swap.accelerate import count_ranks
from penstock._swap.script_names import uses_in
from penstock.errors import ParseError

__all__ = ["check", "install", "main"]

_SCRIPT = "PENSTOCK_SWAP_SCRIPT"  # Tells the processes that a script spawns what they import.


class _Swapped(Loader):
    """Gives a module that is there already by another name, and leaves it as it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._module = importlib.import_module(self._name)
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Amended(Loader):
    """Makes a module as its own loader does, and then changes something in it."""

    def __init__(self, loader: Loader, amend: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._amend = amend

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._amend(module)


# Changes in modules of others, by name.
_AMENDED = {"accelerate.state": count_ranks}


class _StandIn(Distribution):
    """What importlib.metadata knows of the package that penstock stands in for."""

    def read_text(self, filename: str) -> str | None:
        version = _compatibility.DEEPSPEED
        files = {
            "METADATA": f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n",
            "top_level.txt": "deepspeed\n",
        }
        return files.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class _Finder(MetaPathFinder):
    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name in _AMENDED:
            return _amended(name, path)
        module = self._module_for(name)
        if module is not None:
            return ModuleSpec(name, _Swapped(module))
        parent = name.rpartition(".")[0]
        instead = self._module_for(parent)
        reason = _compatibility.modules().get(name)
        if reason is not None and reason.instead is None:
            raise ModuleNotFoundError(f"{name} is not in penstock: {reason.rest.note}", name=name)
        if instead is not None:
            within = getattr(importlib.import_module(instead), "__path__", [])
            there = sorted(each.name for each in iter_modules(within) if each.name[0] != "_")
            raise ModuleNotFoundError(
                f"{name} is not in penstock, which stands in for {parent} here; it has "
                f"{', '.join(f'{parent}.{each}' for each in there) or 'no modules'}",
                name=name,
            )
        return None

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        wanted = getattr(context, "name", None)
        return [_StandIn()] if wanted is None or wanted.lower() == "deepspeed" else []

    def _module_for(self, name: str) -> str | None:
        """Its own of the same name, where the table has no other."""
        if name in self._modules:
            return self._modules[name]
        if not name.startswith("deepspeed."):
            return None
        own = f"penstock{name.removeprefix('deepspeed')}"
        if any(part.startswith("_") for part in own.split(".")):
            return None
        try:
            return own if find_spec(own) is not None else None
        except ImportError:
            return None


def _amended(name: str, path: Any) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Amended(spec.loader, _AMENDED[name])
    return spec


def install() -> None:
    """Swaps imports from now on.

    Raises RuntimeError where what is to be swapped has been imported already.
    """
    table = _compatibility.modules()
    modules = {name: each.instead for name, each in table.items() if each.instead is not None}
    if any(isinstance(each, _Finder) for each in sys.meta_path):
        return
    late = [name for name in modules if name in sys.modules]
    if late:
        raise RuntimeError(f"penstock.swap: {', '.join(late)} is imported already")
    sys.meta_path.insert(0, _Finder(modules))
    for name, amend in _AMENDED.items():
        if name in sys.modules:
            amend(sys.modules[name])


def _in_spawned_processes(script: str) -> None:
    """Has multiprocessing import the script by way of this module, where it spawns processes.

    script: its path; or its name as a module, which is not imported again if it is a package's
    __main__, as multiprocessing has it.
    """
    from multiprocessing import spawn

    prepare = spawn.get_preparation_data

    def prepare_swapped(name: str) -> dict[str, Any]:
        data = prepare(name)
        by_name = data.pop("init_main_from_name", None)
        if by_name is not None or "init_main_from_path" in data:
            os.environ[_SCRIPT] = script if by_name is None else by_name
            data["init_main_from_path"] = __file__
        return data

    spawn.get_preparation_data = prepare_swapped


def _names_in_spawned(script: str) -> dict[str, Any]:
    """The names of a script in a process that it spawned: what is looked up there."""
    if Path(script).is_absolute():
        return runpy.run_path(script, run_name="__mp_main__")
    if script.endswith("__main__"):
        return {}
    return runpy.run_module(script, run_name="__mp_main__", alter_sys=True)


def check(script: str) -> int:
    """Prints which names a script uses, and what becomes of each; the exit code."""
    try:
        uses = uses_in(Path(script).read_text(encoding="utf-8"), script)
    except (OSError, UnicodeDecodeError, ParseError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        named = reason if isinstance(error, ParseError) else f"{script}: {reason}"
        print(f"penstock.swap: {named}", file=sys.stderr)
        return 2
    counts = dict.fromkeys(("works", "differs", "refused", "unknown"), 0)
    for use in uses:
        counts[use.fate.verdict] += 1
        first, *others = use.lines
        also = f" (also {', '.join(map(str, others))})" if others else ""
        note = f": {use.fate.note}" if use.fate.note else ""
        print(f"{script}:{first}{also}: {use.name}: {use.fate.verdict}{note}")
    told = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    names = "1 use" if len(uses) == 1 else f"{len(uses)} uses"
    print(f"{script}: {names} of torch.distributed.pipelining and DeepSpeed: {told}")
    return 1 if counts["refused"] or counts["unknown"] else 0


def main(arguments: Sequence[str]) -> None:
    """Runs the script that the first argument names, or the module behind -m, with the others."""
    _standard_streams.open_missing()
    if arguments and arguments[0] == "--check":
        if len(arguments) != 2:
            print("usage: python -m penstock.swap --check SCRIPT", file=sys.stderr)
            sys.exit(2)
        sys.exit(check(arguments[1]))
    by_name = bool(arguments) and arguments[0] == "-m"
    script, *rest = arguments[by_name:] or [""]
    if not script or script.startswith("-"):
        sys.exit(
            "usage: python -m penstock.swap SCRIPT [ARGUMENTS], or -m MODULE [ARGUMENTS], or "
            "--check SCRIPT"
        )
    path = Path(script)
    if not by_name and not path.is_file():
        sys.exit(f"penstock.swap: {script}: no such file")
    install()
    sys.argv = [script, *rest]
    if by_name:
        sys.path.insert(0, str(Path.cwd()))
        _in_spawned_processes(script)
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        _in_spawned_processes(str(path.absolute()))
        sys.path[0] = str(path.absolute().parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":
    # A process that the script spawned: its functions are looked up here.
    import penstock.swap

    penstock.swap.install()
    globals().update(_names_in_spawned(os.environ[_SCRIPT]))
