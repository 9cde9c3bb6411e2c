"""Finds autograd graphs whose backward cannot be run in two halves.

Looked at once for each stage of a program with I and W; the C++ library splits the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Reason", "why_not_split"]


@dataclass(frozen=True)
class Reason:
    """What it is, in words; and whether all of the stage's backward has to run at once."""

    what: str
    all_at_once: bool


def why_not_split(outputs: tuple[torch.Tensor | None, ...]) -> Reason | None:
    """None where the backward of `outputs` splits.

    What non-reentrant checkpoints recompute can be used once, so that two halves would recompute
    twice.  Of a compiled graph, or a Python function, nobody knows the parts; that matters where it
    computes gradients of weights and of something else.  What only hands gradients on (fully_shard,
    DTensors) is run in I, and what lies around it splits.
    """
    reason = None
    for node in _nodes(outputs):
        if _has_unpack_hooks(node):
            return Reason("checkpointed activations", all_at_once=True)
        if reason is None and _is_of_python(node) and _computes_weights(node):
            compiled = "CompiledFunction" in type(node).__name__
            what = "compiled graph" if compiled else f"{type(node).__name__}"
            reason = Reason(what, all_at_once=False)
    return reason


def _is_of_python(node: Any) -> bool:
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def _computes_weights(node: Any) -> bool:
    """Whether it has a weight, or what is made of one weight alone, among several inputs."""
    before = [each for each, _ in node.next_functions if each is not None]
    return len(before) > 1 and any(_is_weight(each) for each in before)


def _is_weight(node: Any) -> bool:
    while len(node.next_functions) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return isinstance(getattr(node, "variable", None), torch.nn.Parameter)


def _nodes(outputs: tuple[torch.Tensor | None, ...]) -> Iterator[Any]:
    stack = [each.grad_fn for each in outputs if each is not None and each.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def _has_unpack_hooks(node: Any) -> bool:
    for name in dir(node):
        if not name.startswith("_raw_saved_"):
            continue
        saved = getattr(node, name)
        for each in saved if isinstance(saved, tuple | list) else (saved,):
            if getattr(each, "unpack_hook", None) is not None:
                return True
    return False
