"""Finds the words of a script that are engines, schedules, stages and traced models.

    objects = Objects(list(ast.walk(tree)), path)
    objects.member(node)    # of `engine.bakward`: its name, and a Fate: unknown, there is backward

A word is one of them where the script assigns it what makes one, and, but for engines, nothing else
but None.  Of a member that the table does not have, it tells only where one of a like name is
there and the script defines no such name itself: it may be a module's, or a subclass's.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches

from penstock import _compatibility
from penstock._compatibility import Fate

__all__ = ["Objects"]

_PIPELINING = "torch.distributed.pipelining"
_ENGINE, _SCHEDULE, _STAGE, _PIPE, _SCHEDULE_CLASS = range(5)
# Their module and class in the table, or both of the classes that it may be.
_OWNERS = {
    _ENGINE: (
        ("deepspeed.runtime.engine", "DeepSpeedEngine"),
        ("deepspeed.runtime.pipe.engine", "PipelineEngine"),
    ),
    _SCHEDULE: ((f"{_PIPELINING}.schedules", "_PipelineSchedule"),),
    _STAGE: ((f"{_PIPELINING}.stage", "PipelineStage"),),
    _PIPE: ((f"{_PIPELINING}._IR", "Pipe"),),
    _SCHEDULE_CLASS: (),
}
_MAKERS = {
    "PipelineStage": _STAGE,
    "build_stage": _STAGE,
    "pipeline": _PIPE,
    "get_schedule_class": _SCHEDULE_CLASS,
}
_LIKE = 0.9  # How like two names must be: one letter more, less or swapped in some eight.


class Objects:
    """The objects of one file. path: what an expression stands for, by the imports."""

    def __init__(self, nodes: Sequence[ast.AST], path: Callable[[ast.expr], str | None]) -> None:
        self._path = path
        self._kinds: dict[str, int] = {}  # Kinds by word: "self.engine".
        self._own = {
            node.attr if isinstance(node, ast.Attribute) else node.name
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        }
        assigned = [pair for node in nodes for pair in _assignments(node)]
        for _ in range(3):  # One is made of another: a stage of a traced model.
            for target, value in assigned:
                kind = self._kind(value)
                if kind is not None:
                    self._kinds[_word(target)] = kind
        self._doubtful = self._otherwise_assigned(nodes, assigned)

    def member(self, node: ast.Attribute) -> tuple[str, Fate] | None:
        """Judges an attribute of one of them; None where there is nothing to tell."""
        word = ast.unparse(node.value)
        kind = self._kinds.get(word)
        if kind is None or (kind != _ENGINE and word in self._doubtful):
            return None
        for module, owner in _OWNERS[kind]:
            fate = _compatibility.modules()[module].names.get(f"{owner}.{node.attr}")
            if fate is not None:
                return f"{module}.{owner}.{node.attr}", fate
        is_read = isinstance(node.ctx, ast.Load)
        if not is_read or word in self._doubtful or node.attr in self._own:
            return None
        return _like(kind, node.attr)

    def _kind(self, value: ast.expr) -> int | None:
        if isinstance(value, ast.Subscript):  # initialize(...)[0]
            value = value.value
        if not isinstance(value, ast.Call):
            return None
        function = value.func
        path = self._path(function)
        if path == "deepspeed.initialize":
            return _ENGINE
        if path is not None and path.startswith(f"{_PIPELINING}."):
            name = path.rpartition(".")[2]
            is_schedule = "Schedule" in name and not name.startswith("get_")
            return _SCHEDULE if is_schedule else _MAKERS.get(name)
        if isinstance(function, ast.Attribute) and function.attr == "build_stage":
            made = self._kinds.get(ast.unparse(function.value)) == _PIPE
            return _STAGE if made else None
        of = self._kind(function) if isinstance(function, ast.Call) else None
        of = self._kinds.get(ast.unparse(function)) if of is None else of
        return _SCHEDULE if of == _SCHEDULE_CLASS else None

    def _otherwise_assigned(
        self, nodes: Sequence[ast.AST], assigned: Sequence[tuple[ast.expr, ast.expr]]
    ) -> set[str]:
        """Words that are something else, too."""
        stores = Counter(
            ast.unparse(node)
            for node in nodes
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        for target, value in assigned:
            nothing = isinstance(value, ast.Constant) and value.value is None
            if nothing or self._kind(value) is not None:
                stores[_word(target)] -= 1
        return {word for word, count in stores.items() if count > 0}


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


def _word(target: ast.expr) -> str:
    """What is assigned; of several, the first, which is initialize()'s engine."""
    if isinstance(target, ast.Tuple | ast.List) and target.elts:
        return ast.unparse(target.elts[0])
    return ast.unparse(target)


def _like(kind: int, name: str) -> tuple[str, Fate] | None:
    for module, owner in _OWNERS[kind]:
        names = _compatibility.modules()[module].names
        members = [each.partition(".")[2] for each in names if each.startswith(f"{owner}.")]
        near = get_close_matches(name, members, n=1, cutoff=_LIKE)
        if near:
            return f"{module}.{owner}.{name}", Fate("unknown", f"{owner} has {near[0]}")
    return None
