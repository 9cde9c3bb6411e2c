"""The walls of the Python package, and that no imports run in a circle.

python/penstock has three walls: what is its own, what trains (_engines), and the names of dialects.
Modules import what stands behind the same wall or below it; `penstock` itself, the front door,
imports all.  A room is a folder, or a module beside the folders.  Neither modules nor rooms import
each other in a circle, also where it is inside of a function or for type checkers alone.  tidy.py
reports what is found here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

PACKAGE = PurePosixPath("python/penstock")
OWN, ENGINES, NAMES = range(3)
WALLS = ("what is its own", "_engines", "the names of dialects")
# What stands behind the third: modules by names of torch.distributed.pipelining and DeepSpeed.
DIALECTS = {
    *("accelerator", "checkpoint", "checkpointing", "comm", "git_version_info", "lr_schedules"),
    *("moe", "monitor", "ops", "pipe", "pipelining", "runtime", "utils", "zero"),
}


@dataclass(frozen=True)
class Import:
    path: str  # The file that has it.
    line: int
    module: str  # Name with dots of what it imports.
    target: str


def module_of(path: str) -> str:
    """The name "penstock.zero.engine" of a file; of a package, its own name."""
    parts = PurePosixPath(path).relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def wall_of(module: str) -> int:
    """The wall of a module; the package itself, the front door, has that of its own things."""
    _, _, inside = module.partition(".")
    top = inside.split(".")[0]
    return ENGINES if top == "_engines" else NAMES if top in DIALECTS else OWN


def imports_of(path: str, text: str, modules: Iterable[str]) -> Iterator[Import]:
    """Imports of the package's modules in a file, wherever they stand."""
    known, module = set(modules), module_of(path)
    package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found = [f"{base}.{each.name}" for each in node.names]
            found = [each if each in known else base for each in found]
        else:
            continue
        for target in dict.fromkeys(found):
            if target in known and target != module:
                yield Import(path, node.lineno, module, target)


def arrows_back(imports: Iterable[Import]) -> Iterator[tuple[Import, str]]:
    """Each import of what stands behind a higher wall, with what is wrong."""
    for each in imports:
        here, there = wall_of(each.module), wall_of(each.target)
        if here < there and each.module != PACKAGE.name:
            yield each, f"{WALLS[here]} may not import {each.target}: {WALLS[there]} stand above it"


def circles(imports: Iterable[Import], rooms: Mapping[str, str]) -> Iterator[tuple[Import, str]]:
    """One circle of modules and one of rooms, if there are any.  rooms: by module."""
    found = [each for each in imports if PACKAGE.name not in (each.module, each.target)]
    of_modules = {(each.module, each.target): each for each in reversed(found)}
    of_rooms = {(rooms[each.module], rooms[each.target]): each for each in reversed(found)}
    for what, arrows in (("modules", of_modules), ("rooms", of_rooms)):
        if circle := _circle_in(arrows):
            yield arrows[circle[0], circle[1]], f"a circle of {what}: {' -> '.join(circle)}"


def _circle_in(arrows: Iterable[tuple[str, str]]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for source, target in arrows:
        if source != target:
            graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]  # Modules in the order of the arrows.
        first = circle.index(min(circle))
        return [*circle[first:], *circle[: first + 1]]
    return []


def check_walls(texts: Mapping[str, str]) -> Iterator[tuple[Import, str]]:
    """texts: of the package's files, by path."""
    modules = {module_of(path): path for path in texts}
    rooms = {module: _room_of(module, path) for module, path in modules.items()}
    imports = [
        each for path, text in sorted(texts.items()) for each in imports_of(path, text, modules)
    ]
    yield from arrows_back(imports)
    yield from circles(imports, rooms)


def _room_of(module: str, path: str) -> str:
    folder = PurePosixPath(path).parent
    return module if folder == PACKAGE else ".".join(folder.relative_to(PACKAGE.parent).parts)
