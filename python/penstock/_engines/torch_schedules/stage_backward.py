"""Names of torch.distributed.pipelining._backward: a backward of one's own, whole or in halves.

Schedules do not use them: their split backward is in the C++ library, and runs less in its second
half.  Here the second half is a whole pass towards the weights.  Source: torch.autograd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from penstock._compatibility import published_as

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]

Gradients = tuple[torch.Tensor | None, ...]
_KEYS = {"params", "edges", "gradients"}


def stage_backward(
    stage_output: Any,
    output_grads: Any,
    input_values: Sequence[Any],
    outputs_with_grads_idxs: Sequence[int] | None = None,
) -> Gradients:
    """Adds the gradients of all leaves, and returns those of the inputs, which keep none.

    stage_output, output_grads: of the same nesting; None for a gradient of 1.
    outputs_with_grads_idxs: of a flat output, those that count.
    """
    if outputs_with_grads_idxs is not None:
        stage_output = [stage_output[i] for i in outputs_with_grads_idxs]
        output_grads = [output_grads[i] for i in outputs_with_grads_idxs]
    pairs = list(_with_gradients(stage_output, output_grads))
    torch.autograd.backward([each for each, _ in pairs], [gradient for _, gradient in pairs])
    gradients = []
    for value in input_values:
        gradients.append(value.grad if isinstance(value, torch.Tensor) else None)
        if isinstance(value, torch.Tensor):
            value.grad = None
    return tuple(gradients)


def stage_backward_input(
    stage_outputs_or_loss: Sequence[torch.Tensor],
    output_grads: Sequence[torch.Tensor] | None,
    input_values: Sequence[Any],
    weights: Iterable[torch.nn.Parameter],
) -> tuple[Gradients, list[dict[str, Any]]]:
    """The gradients of the inputs, also added to theirs; and what stage_backward_weight() takes.

    The outputs lose their graph, which that keeps.
    """
    given = output_grads or [torch.ones_like(each) for each in stage_outputs_or_loss]
    pairs = [
        pair for pair in zip(stage_outputs_or_loss, given, strict=True) if pair[0].requires_grad
    ]
    wanted = [i for i, value in enumerate(input_values) if _takes_gradient(value)]
    gradients: list[torch.Tensor | None] = [None] * len(input_values)
    if pairs and wanted:
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            [input_values[i] for i in wanted],
            [gradient for _, gradient in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        for i, gradient in zip(wanted, found, strict=True):
            gradients[i] = gradient
            if gradient is not None:
                old = input_values[i].grad
                input_values[i].grad = gradient if old is None else old + gradient
    group = {
        "params": [each for each in weights if each.requires_grad],
        "edges": [get_gradient_edge(output) for output, _ in pairs],
        "gradients": [gradient for _, gradient in pairs],
    }
    for output in stage_outputs_or_loss:
        output.detach_()
    return tuple(gradients), [group]


def stage_backward_weight(
    weights: Iterable[torch.nn.Parameter],
    param_groups: list[dict[str, Any]],
    retain_graph: bool = False,
) -> Gradients:
    """Adds the gradients of the weights that stage_backward_input() has put off; returns all.

    Raises ValueError for groups that it has not made.
    """
    for group in param_groups:
        if set(group) != _KEYS:
            raise ValueError(
                f"param_groups has a group of {', '.join(sorted(group))}: they are used as "
                f"stage_backward_input() returned them, once"
            )
        edges, gradients = group.pop("edges"), group.pop("gradients")
        if edges and group["params"]:
            torch.autograd.backward(
                edges, gradients, retain_graph=retain_graph, inputs=group["params"]
            )
    return tuple(each.grad for each in weights)


def _takes_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _with_gradients(output: Any, gradient: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """The tensors that take one, with theirs, of nested tuples, lists and dicts."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output, gradient
    elif isinstance(output, dict) and gradient is not None:
        for name, value in output.items():
            yield from _with_gradients(value, gradient[name])
    elif isinstance(output, tuple | list) and gradient is not None:
        for value, each in zip(output, gradient, strict=True):
            yield from _with_gradients(value, each)


published_as("penstock.pipelining._backward", globals())
