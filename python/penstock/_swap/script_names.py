"""Finds the names of torch.distributed.pipelining and DeepSpeed that a script uses, in its text.

    for use in uses_in(Path("train.py").read_text(), "train.py"):
        print(use.name, use.lines, use.fate.verdict)

Nothing of the script runs.  What it finds: imports, attributes of what was imported, members of
engines, schedules, stages and traced models that were made of it (script_objects.py), and where
libraries call DeepSpeed for it (script_trainers.py).  What it
cannot see: getattr(), names in strings, other files.  The table of names is
penstock/_compatibility.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches

from penstock import _compatibility
from penstock._compatibility import Fate
from penstock._swap.script_objects import Objects
from penstock._swap.script_trainers import uses_by_trainers
from penstock.errors import ParseError

__all__ = ["Use", "uses_in"]

_ROOTS = ("deepspeed", "torch.distributed.pipelining")


@dataclass
class Use:
    """A name with what becomes of it, and the lines where it stands, from 1 and rising."""

    name: str
    fate: Fate
    lines: list[int] = field(default_factory=list)


def uses_in(text: str, file: str) -> list[Use]:
    """Uses in the order of their first lines.  Raises ParseError for what is no Python."""
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ParseError(f"{file}{f':{line}' if line else ''}: no Python: {error}") from None
    found: dict[str, Use] = {}
    for line, name, fate in sorted(_Reader(tree).uses(), key=lambda each: each[:2]):
        use = found.setdefault(name, Use(name, fate))
        if line not in use.lines:
            use.lines.append(line)
    return list(found.values())


class _Reader:
    """Reads one file.  A word stands for the same in all of it: scopes are not told apart."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._imported: dict[str, str] = {}  # What each word stands for: "dist": "deepspeed.comm".

    def uses(self) -> Iterator[tuple[int, str, Fate]]:
        nodes = list(ast.walk(self._tree))
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from self._import(node)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from self._import_from(node)
        yield from uses_by_trainers(nodes)
        objects = Objects(nodes, self._path)
        within = {id(each.value) for each in nodes if isinstance(each, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and id(node) not in within:
                yield from self._attribute(node, objects)

    def _import(self, node: ast.Import) -> Iterator[tuple[int, str, Fate]]:
        for each in node.names:
            whole = each.name if each.asname else each.name.partition(".")[0]
            self._bind(each.asname or whole, whole)
            if _is_theirs(each.name):
                yield node.lineno, each.name, _fate_of(each.name)

    def _import_from(self, node: ast.ImportFrom) -> Iterator[tuple[int, str, Fate]]:
        for each in node.names:
            path = node.module if each.name == "*" else f"{node.module}.{each.name}"
            if path is None:
                continue
            self._bind(each.asname or each.name, path)
            if _is_theirs(path):
                yield node.lineno, path, _fate_of(path)

    def _bind(self, word: str, path: str) -> None:
        """Binds a word; theirs counts if a word is imported twice, in a try for example."""
        if _is_theirs(path) or not _is_theirs(self._imported.get(word, "")):
            self._imported[word] = path

    def _attribute(self, node: ast.Attribute, objects: Objects) -> Iterator[tuple[int, str, Fate]]:
        path = self._path(node)
        if path is not None and _is_theirs(path):
            yield node.lineno, path, _fate_of(path)
        while isinstance(node.value, ast.Attribute | ast.Name):
            member = objects.member(node)
            if member is not None:
                yield node.lineno, *member
            if isinstance(node.value, ast.Name):
                return
            node = node.value

    def _path(self, node: ast.expr) -> str | None:
        """What an expression such as `dist.all_reduce` stands for; None: nothing imported."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if isinstance(node, ast.Attribute):
            of = self._path(node.value)
            return None if of is None else f"{of}.{node.attr}"
        return None


def _is_theirs(path: str) -> bool:
    return any(path == root or path.startswith(f"{root}.") for root in _ROOTS)


def _fate_of(path: str) -> Fate:
    """The fate of a dotted path: a module's, or that of its longest part in the table."""
    modules = _compatibility.modules()
    module, rest = path, ""
    while module not in modules:
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    if not rest:
        return Fate("works") if modules[module].instead else modules[module].rest
    name = rest if rest in modules[module].names else rest.partition(".")[0]
    fate = _compatibility.fate(module, name)
    if fate.verdict != "unknown":
        return fate
    near = get_close_matches(name, modules[module].names, n=1)
    return Fate("unknown", f"{module} has {near[0]}" if near else f"{module} has no such name")
