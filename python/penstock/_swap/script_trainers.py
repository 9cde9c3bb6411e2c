"""Finds where a script has a library call DeepSpeed: transformers' Trainer, Accelerate, TRL.

Such a script need not name DeepSpeed at all: an argument `deepspeed`, of the script or of its
command line, is enough.  Read from the text, as script_names.py does; what functions of other
files do, nobody sees.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from penstock._compatibility import Fate

__all__ = ["uses_by_trainers"]

_LIBRARIES = {"transformers", "accelerate", "trl", "peft"}
_CHECKED = "`penstock config check FILE` says what becomes of its configuration"
_TRAINS = Fate("works", f"its DeepSpeed is penstock; {_CHECKED}")
_NAMES = {
    "HfDeepSpeedConfig": Fate("works", "models made after it are spread as they are made"),
    "DeepSpeedPlugin": Fate("works", f"Accelerate's DeepSpeed is penstock; {_CHECKED}"),
}
_PASSED_OVER = Fate(
    "differs",
    "Accelerate then trains without DeepSpeed, and so without penstock, and does not say so: "
    "leave it out, and set DS_ACCELERATOR=cpu",
)
_ONE_RANK_SAVES = Fate(
    "differs",
    "under ZeRO 3 one rank alone cannot read the weights, and gets an error: call "
    "trainer.save_model(), or engine.save_16bit_model(), on all ranks",
)
_ONE_RANK = {"is_main_process", "is_local_main_process", "is_world_process_zero", "local_rank"}
_NOT_MODELS = ("token", "processor", "config")


def uses_by_trainers(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, Fate]]:
    """Line, name, and what becomes of it, of each."""
    nodes = list(nodes)
    if not _imports_any(nodes):
        return
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                if each.name in _NAMES:
                    yield node.lineno, each.name, _NAMES[each.name]
        elif isinstance(node, ast.If) and _asks_for_one_rank(node.test):
            yield from _saves_in(node.body)


def _imports_any(nodes: list[ast.AST]) -> bool:
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.partition(".")[0] in _LIBRARIES for name in names):
            return True
    return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _of_call(node: ast.Call) -> Iterator[tuple[int, str, Fate]]:
    name = _last_name(node.func)
    given = {each.arg: each.value for each in node.keywords if each.arg is not None}
    if not _is_constant(given.get("deepspeed"), None) and "deepspeed" in given:
        yield node.lineno, f"{name}(deepspeed=)", _TRAINS
    if name == "HfArgumentParser" and _mentions_arguments(node):
        yield node.lineno, f"{name}, for --deepspeed FILE", _TRAINS
    if name.endswith(("Arguments", "Config")) and _is_constant(given.get("use_cpu"), True):
        yield node.lineno, f"{name}(use_cpu=True)", _PASSED_OVER


def _mentions_arguments(node: ast.Call) -> bool:
    inside = [each for given in node.args for each in ast.walk(given)]
    return any("Arguments" in _last_name(each) for each in inside if isinstance(each, ast.expr))


def _is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _asks_for_one_rank(test: ast.expr) -> bool:
    names = {_last_name(each) for each in ast.walk(test) if isinstance(each, ast.expr)}
    return bool(names & _ONE_RANK) or "rank" in names


def _saves_in(body: list[ast.stmt]) -> Iterator[tuple[int, str, Fate]]:
    for statement in body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            whose = _last_name(node.func.value) or "a model"
            is_other = any(word in whose.lower() for word in _NOT_MODELS)
            if node.func.attr == "save_pretrained" and not is_other:
                yield node.lineno, f"{whose}.save_pretrained() by one rank", _ONE_RANK_SAVES
