"""Which autograd graphs have a backward that cannot be run in two halves.

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
    twice.  Of a compiled graph, or a Python function, nobody knows the parts.
    """
    reason = None
    for node in _nodes(outputs):
        if _has_unpack_hooks(node):
            return Reason("checkpointed activations", all_at_once=True)
        if isinstance(node, torch.autograd.function.BackwardCFunction) and reason is None:
            compiled = "CompiledFunction" in type(node).__name__
            what = "compiled graph" if compiled else f"{type(node).__name__}"
            reason = Reason(what, all_at_once=False)
    return reason


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
