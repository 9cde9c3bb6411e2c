"""How much the loss of each microbatch counts, so that gradients are those of the whole batch.

A loss that is a mean counts by how much of that a microbatch has: samples, or, of torch's cross
entropies, targets that are not ignored, each by the weight of its class.  Other losses that are
means over something else say so with `loss_weight`.  Knows no schedules.

Source: torch.nn.functional.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import _reduction
from torch.utils import _pytree as pytree

__all__ = [
    "LossWeight",
    "factors_of",
    "is_mean",
    "is_sum",
    "mean_in_graph",
    "warn_of_other_means",
    "warn_of_sum",
]

LossWeight = Callable[[Any], Any]
"""Of a microbatch's share of the target, a number, or a tensor of one element."""

# The last one came with torch 2.13.
_MODULES = tuple(
    getattr(torch.nn, name)
    for name in ("CrossEntropyLoss", "NLLLoss", "LinearCrossEntropyLoss")
    if hasattr(torch.nn, name)
)
_FORWARDS = tuple(each.forward for each in _MODULES)
_FUNCTIONS = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)
_IGNORED = -100  # The target that is left out, where nothing else is said.


def is_mean(loss_fn: Any, loss_kwargs: dict[str, Any], weight: LossWeight | None) -> bool:
    """Whether a step's loss is the mean over its microbatches, and not their sum."""
    return weight is not None or _settings_of(loss_fn, loss_kwargs).get("reduction") != "sum"


def factors_of(
    loss_fn: Any, targets: Sequence[Any], loss_kwargs: dict[str, Any], weight: LossWeight | None
) -> list[float]:
    """What each microbatch counts in the mean of losses that are means; 1, if all count alike.

    Raises ValueError for a `weight` that gives something else than a finite number of at least 0.
    """
    if weight is not None:
        weights = [_checked(weight(target), i) for i, target in enumerate(targets)]
    else:
        weights = _weights(_settings_of(loss_fn, loss_kwargs), targets)
    whole = math.fsum(weights)
    return [each * len(weights) / whole if whole else 0.0 for each in weights]


def mean_in_graph(loss: torch.Tensor) -> torch.Tensor | None:
    """How much of its targets a cross entropy was divided by, if `loss` is made of such a mean."""
    nodes = [loss.grad_fn]
    for node in nodes:
        if node is None:
            continue
        name = type(node).__name__
        if name.startswith("NllLoss") and getattr(node, "_saved_reduction", None) == 1:
            found: torch.Tensor = node._saved_total_weight  # type: ignore[attr-defined]
            return found.detach()
        following = [each for each, _ in node.next_functions if each not in nodes]
        nodes += following[: _NODES_MAX - len(nodes)]
    return None


def is_sum(loss: torch.Tensor) -> bool:
    """Whether the operation that gave `loss` adds up, and divides by nothing."""
    node = loss.grad_fn
    return type(node).__name__ == "SumBackward0" or getattr(node, "_saved_reduction", None) == 2


def warn_of_sum(microbatches: int) -> None:
    """Warns of a loss that is a sum, and counts as a mean because nobody has said it."""
    warnings.warn(
        f"loss_fn returned a sum, which counts as a mean over samples, so gradients are about "
        f"1/{microbatches} of those of the sum over the batch: scale_grads=False adds them up, as "
        f'reduction="sum" does of a module of torch\'s',
        stacklevel=4,
    )


_NODES_MAX = 64  # Limit on operations between a cross entropy and what a loss_fn returns.


def warn_of_other_means(factors: Sequence[float], means: Sequence[torch.Tensor]) -> bool:
    """Warns, and is true, where microbatches do not count by what their losses are means of."""
    shares = [each / len(factors) for each in factors]
    counts = [each.item() for each in means]
    whole = math.fsum(counts)
    for i, (share, count) in enumerate(zip(shares, counts, strict=True)):
        if math.isclose(share * whole, count, rel_tol=1e-5, abs_tol=1e-5 * whole):
            continue
        warnings.warn(
            f"the loss of microbatch {i} is a mean over {count:g} of {whole:g} targets, and counts "
            f"{share:g} of the step: loss_fn is none of torch's, so it counts by its samples; give "
            f"the schedule loss_weight, a function of the target, for gradients of the whole batch",
            stacklevel=4,
        )
        return True
    return False


def _settings_of(loss_fn: Any, loss_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Its `reduction`, and of a cross entropy of torch's `ignore_index` and `weight`, too."""
    keywords = dict(loss_kwargs)
    loss_fn = _uncompiled(loss_fn)
    while isinstance(loss_fn, functools.partial):
        keywords = {**loss_fn.keywords, **keywords}
        loss_fn = _uncompiled(loss_fn.func) if not loss_fn.args else None
    if keywords.get("size_average") is not None or keywords.get("reduce") is not None:
        keywords["reduction"] = _reduction.legacy_get_string(
            keywords.get("size_average"), keywords.get("reduce"), emit_warning=False
        )
    if loss_fn in _FUNCTIONS:
        return {"ignore_index": _IGNORED, "weight": None, **keywords}
    reduction = keywords.get("reduction", getattr(loss_fn, "reduction", None))
    if getattr(type(loss_fn), "forward", None) in _FORWARDS:
        index = _IGNORED if loss_fn.ignore_index is None else loss_fn.ignore_index
        return {"reduction": reduction, "ignore_index": index, "weight": loss_fn.weight}
    return {"reduction": reduction}


def _uncompiled(function: Any) -> Any:
    function = getattr(function, "_orig_mod", function)
    return getattr(function, "_torchdynamo_orig_callable", function)


def _weights(settings: dict[str, Any], targets: Sequence[Any]) -> list[float]:
    has_classes = "ignore_index" in settings and all(
        isinstance(each, torch.Tensor) and not each.is_floating_point() for each in targets
    )
    if not has_classes:
        return [_samples(each) for each in targets]
    found = [_counted(each, settings["ignore_index"], settings["weight"]) for each in targets]
    weights: list[float] = torch.stack(found).tolist()
    return weights


def _counted(target: torch.Tensor, ignore_index: int, weight: torch.Tensor | None) -> torch.Tensor:
    counts = target != ignore_index
    if weight is None:
        return counts.sum()
    return weight.double()[target[counts].long()].sum()


def _samples(target: Any) -> float:
    """How many there are in a microbatch: the first dimension of its first tensor, or 1."""
    for value in pytree.tree_leaves(target):
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return value.shape[0]
    return 1


def _checked(value: Any, microbatch: int) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(
            f"loss_weight gave {value!r} for microbatch {microbatch}, must give a finite number of "
            f"at least 0"
        )
    return number
