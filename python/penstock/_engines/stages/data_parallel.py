"""Stages in DistributedDataParallel: forwards that sum nothing, and the sum at the end of a step.

DDP sums in the backward of a forward.  A step has many of these, in an order of its schedule's, so
its forwards look to DDP as those inside no_sync().  At the end of the program one more backward
adds zeros to every gradient: there DDP sums, with its own buckets and communication hook.
Knows no schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from penstock.errors import ConfigError

__all__ = ["DataParallel", "data_parallel_in"]

_REFUSED = {
    "mixed_precision": "casts parameters before each forward: take torch.autocast, or cast stages",
    "_use_python_reducer": "is what torch.compile makes: compile the module inside instead",
    "_delay_all_reduce_params": "(delay_all_reduce_named_params) sums outside of backwards",
}
"""Attributes that say how DDP was made, and why a program cannot run it so."""


def data_parallel_in(module: torch.nn.Module) -> DataParallel | None:
    """What to do about the DDP that a stage's module is or has inside, if there is one.

    Raises ConfigError, a ValueError, for two of them, and for options that fit no program.
    """
    found = [
        each for each in module.named_modules() if isinstance(each[1], DistributedDataParallel)
    ]
    if not found:
        return None
    if len(found) > 1:
        raise ConfigError(
            f"a stage's module has {len(found)} DistributedDataParallel inside, must have one"
        )
    return DataParallel(*found[0])


class DataParallel:
    """One that all microbatches of a stage go through.

    name: of it in the stage's module; module: that is it.
    """

    def __init__(self, name: str, module: DistributedDataParallel) -> None:
        where = f' "{name}"' if name else ""
        self._what = f"DistributedDataParallel{where} of a stage"
        self._module = module
        self._parameters = [each for each in module.module.parameters() if each.requires_grad]
        self._sparse = _sparse_weights(module.module)
        self._check_options()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """A context in which a forward's backward adds to gradients, and sums nothing.

        Buffers become those of the first replica as in plain DDP: in the first forward of a step
        that trains.
        """
        module = self._module
        if module._join_config.enable:
            raise ConfigError(
                f"{self._what} is in join(): replicas of a pipeline run as many steps as each "
                f"other; leave out the last batches of some"
            )
        finds, syncs_buffers = module.find_unused_parameters, module.require_forward_param_sync
        trains = torch.is_grad_enabled()
        if trains and module.static_graph and not module._static_graph_delay_allreduce_enqueued:
            self._begin_static_graph()
        module.find_unused_parameters = False  # True would give each output a node of Python's.
        module.require_forward_param_sync = syncs_buffers and trains
        try:
            with module.no_sync():
                yield
        finally:
            module.find_unused_parameters = finds
            if not trains:
                module.require_forward_param_sync = syncs_buffers

    def finish(self) -> None:
        """Sums, unless the script has said no_sync() around the step.

        A parameter that got no gradient on any replica has none.
        """
        if not self._module.require_backward_grad_sync:
            return
        unused = [each for each in self._parameters if each.grad is None]
        self._sum()
        self._module.require_forward_param_sync = True
        for parameter in unused:
            if parameter.grad is not None and not _has_values(parameter.grad):
                parameter.grad = None

    def _begin_static_graph(self) -> None:
        """Sums nothing, twice.

        In its first backward a static graph counts how often each gradient comes, and those of
        microbatches would count: the second one ends that.
        """
        # DDP's own first one leaves it so.
        self._module._static_graph_delay_allreduce_enqueued = True
        before = [each.grad for each in self._parameters]
        for end in (self._module.reducer._delay_all_reduce, None):  # type: ignore[attr-defined]
            for each in self._parameters:
                each.grad = None
            self._sum(end)
        for each, gradient in zip(self._parameters, before, strict=True):
            each.grad = gradient

    def _sum(self, end: Callable[[], None] | None = None) -> None:
        """Runs a backward that adds zeros.  end: is called in it, last."""
        if not self._parameters:
            return
        nothing = [self._nothing_of(each) for each in self._parameters]
        self._module.reducer.prepare_for_backward(nothing)
        if end is not None:
            nothing[0].register_hook(lambda _: _at_end(end))  # type: ignore[no-untyped-call]
        torch.autograd.backward(nothing, [torch.zeros_like(each) for each in nothing])

    def _nothing_of(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """A sum whose backward adds zeros to the gradient, in the form that DDP expects."""
        with torch.enable_grad():
            if id(parameter) not in self._sparse:
                return parameter.flatten()[:0].sum()
            rows = torch.zeros(0, dtype=torch.long, device=parameter.device)
            return torch.nn.functional.embedding(rows, parameter, sparse=True).sum()

    def _check_options(self) -> None:
        for option, why in _REFUSED.items():
            if getattr(self._module, option, None):
                raise ConfigError(f"{self._what}: {option.lstrip('_')} {why}")
        if any(hasattr(each, "_in_backward_optimizers") for each in self._parameters):
            raise ConfigError(
                f"{self._what} has optimizers that step in each backward "
                f"(_apply_optimizer_in_backward): a step has many; step after schedule.step()"
            )


def _sparse_weights(module: torch.nn.Module) -> set[int]:
    """Ids of parameters whose gradients are sparse, by DDP's own rule."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(each.weight) for each in module.modules() if isinstance(each, kinds) and each.sparse}


def _has_values(gradient: torch.Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.any())


def _at_end(function: Any) -> None:
    """Has it called when the backward that runs is over."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)
