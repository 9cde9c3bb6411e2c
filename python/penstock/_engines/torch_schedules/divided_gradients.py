"""A step's gradients, divided when all of them are there.

No backward begins with a share of a mean, so what looks at gradients within one sees those of the
loss itself, and what adds to them there is divided with the rest.  Knows no schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["divided"]


@contextmanager
def divided(modules: Iterable[torch.nn.Module], divisor: int) -> Iterator[None]:
    """What is added to gradients of parameters inside is divided; what was there before is not.

    After an exception gradients are as they were before.
    """
    if divisor == 1:
        yield
        return
    modules = list(modules)
    before = [(each, each.grad) for each in _parameters(modules) if each.grad is not None]
    stays = bool(before) and any(
        isinstance(each, DistributedDataParallel) for each in _walk(modules)
    )
    with torch.no_grad():
        before = _kept(before, divisor) if stays else _set_aside(before)
    try:
        yield
    except BaseException:
        for parameter, gradient in before:
            parameter.grad = gradient
        raise
    with torch.no_grad():
        gradients = [each.grad for each in _parameters(modules) if each.grad is not None]
        _divide(gradients, divisor)
        if stays:
            return
        for parameter, gradient in before:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)


_Gradients = list[tuple[torch.nn.Parameter, torch.Tensor]]


def _set_aside(before: _Gradients) -> _Gradients:
    for each, _ in before:
        each.grad = None
    return before


def _kept(before: _Gradients, divisor: int) -> _Gradients:
    """Copies.  DistributedDataParallel sums what is there with what comes: it is divided, too."""
    copies = [(each, gradient.clone()) for each, gradient in before]
    for _, gradient in before:
        gradient.mul_(divisor)
    return copies


def _divide(gradients: list[torch.Tensor], divisor: int) -> None:
    plain = [each for each in gradients if type(each) is torch.Tensor and not each.is_sparse]
    if plain:
        torch._foreach_div_(plain, divisor)
    if len(plain) < len(gradients):
        for each in gradients:
            if type(each) is not torch.Tensor or each.is_sparse:
                each.div_(divisor)


# Walks as torch's own does, in a part of the time: steps may take milliseconds.
def _walk(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    found = dict.fromkeys(modules)
    todo = list(found)
    while todo:
        for child in todo.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                todo.append(child)
    return list(found)


def _parameters(modules: list[torch.nn.Module]) -> list[torch.nn.Parameter]:
    """Each once."""
    found = {
        id(parameter): parameter
        for module in _walk(modules)
        for parameter in module._parameters.values()
        if parameter is not None
    }
    return list(found.values())
