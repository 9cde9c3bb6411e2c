"""What penstock._runtime calls of a stage: its module's forward, the loss, and what hooks do.

A StageWork is one stage of a schedule; a Step what it is to do now.  Tensors come in and go out as
a flat tuple; everything else that a module takes stays on its rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from penstock._engines.stages import backward_graph
from penstock._engines.stages.data_parallel import data_parallel_in
from penstock._engines.stages.loss_weights import is_sum, mean_in_graph
from penstock._engines.stages.sent_tensors import (
    Tensors,
    is_dtensor,
    own_memory,
    received,
    sendable,
    whole,
)
from penstock._engines.stages.stage_hooks import RunStage, StageHooks, hooks_of, is_fully_sharded

__all__ = ["RunStage", "StageWork", "Step"]


@dataclass
class Step:
    """One step, by microbatch: what this rank's stages get, and what the last one has given.

    of_nothing: microbatches that do not count, because their losses are means over nothing.
    means: if it looks at them, how much each loss is a mean over, as far as their graphs say it.
    sums: likewise, whether one is a sum.
    losses: as the user gets them: detached.
    made: if it is kept, what each stage returned, by stage and microbatch.
    """

    args: list[tuple[Any, ...]] | None
    kwargs: list[dict[str, Any]]
    targets: list[Any] | None = None
    loss_kwargs: dict[str, Any] = field(default_factory=dict)
    keeps_outputs: bool = True
    outputs: dict[int, Any] = field(default_factory=dict)
    of_nothing: frozenset[int] = frozenset()
    looks_at_means: bool = False
    means: list[torch.Tensor] = field(default_factory=list)
    sums: bool = False
    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    made: dict[tuple[int, int], Any] | None = None


class StageWork:
    """A stage as penstock._runtime runs it.

    module: what it runs.
    loss_fn: of the last stage; may be replaced between steps.
    hooks: None where there is nothing beside forward and backward.
    splits_backward: whether the backward of the module's graph has two halves.
    needs_engine: whether the backward asks torch's engine for something; the runtime sees by
        itself that Python's functions and hooks in a graph do.
    """

    def __init__(
        self,
        stage: RunStage,
        loss_fn: Callable[..., torch.Tensor] | None,
        program_splits: bool,
    ) -> None:
        self.stage_index = stage.stage_index
        self.device = stage.device
        self._replicas = data_parallel_in(stage.submod)
        self.hooks: StageHooks | None = hooks_of(stage, self._replicas)
        self.tied = stage.tied
        # What dw_builder puts off, it takes out of the graph.
        self.splits_backward = stage.dw_builder is None
        self.needs_engine = any(map(is_fully_sharded, stage.submod.modules()))
        self.step = Step(None, [])
        self.module = stage.submod
        self._is_first = stage.is_first
        self._is_last = stage.is_last
        self._get_mesh = stage.get_mesh
        self.loss_fn = loss_fn
        self._program_splits = program_splits and self.splits_backward
        self._looks_at_graph = True
        self._last: tuple[int, Any] = (0, None)  # A microbatch, and what the last stage returned.

    def forward(self, microbatch: int, inputs: Tensors) -> Tensors:
        """Runs the module; the last stage's result stays here."""
        step = self.step
        if self._is_first and step.args is not None:
            args = step.args[microbatch]
        else:
            args = received(inputs, self._get_mesh, self.stage_index)
        if self._replicas is None:
            output = self.module(*args, **step.kwargs[microbatch])
        else:
            with self._replicas.accumulating():
                output = self.module(*args, **step.kwargs[microbatch])
        if step.made is not None:
            step.made[self.stage_index, microbatch] = output
        if self._is_last:
            self._last = (microbatch, output)
            if step.keeps_outputs:
                step.outputs[microbatch] = _kept(output, inputs)
            return ()
        outputs = output if isinstance(output, tuple | list) else (output,)
        tensors = sendable(outputs, self.stage_index)
        if self._looks_at_graph:
            self._look_at_graph(tensors)
        return tensors

    def loss(self) -> torch.Tensor:
        """The loss of what forward() has just returned."""
        microbatch, output = self._last
        self._last = (0, None)
        targets = self.step.targets
        assert self.loss_fn is not None and targets is not None
        if microbatch in self.step.of_nothing:
            zero = _zero(output)
            self.step.losses[microbatch] = zero.detach()
            return zero
        loss = self.loss_fn(output, targets[microbatch], **self.step.loss_kwargs)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss_fn returned {_type_of(loss)}, must return a tensor: a scalar")
        self.step.losses[microbatch] = loss.detach()
        loss = whole(loss)
        if self._looks_at_graph:
            self._look_at_graph((loss,))
        if self.step.looks_at_means and len(self.step.means) == microbatch:
            mean = mean_in_graph(loss)
            self.step.means += [] if mean is None else [mean]
        if self.step.looks_at_means:
            self.step.sums |= is_sum(loss)
        return loss

    def _look_at_graph(self, outputs: Tensors) -> None:
        if not torch.is_grad_enabled():
            return
        self._looks_at_graph = False
        reason = backward_graph.why_not_split(outputs)
        if reason is None:
            return
        self.needs_engine |= reason.all_at_once
        self.splits_backward &= not reason.all_at_once
        if self._program_splits:
            warnings.warn(
                f"stage {self.stage_index}: the backward of its {reason.what} cannot be split, so "
                f"it is run as I, and W has nothing left to do",
                stacklevel=2,
            )


def _kept(output: Any, inputs: Tensors) -> Any:
    """The result without its graph, and without memory that later microbatches come into."""
    buffers = {each.untyped_storage().data_ptr() for each in inputs if each is not None}

    def keep(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = own_memory(value.detach())
        memory = value.to_local() if is_dtensor(value) else value
        return value.clone() if memory.untyped_storage().data_ptr() in buffers else value

    return keep(output) if type(output) is torch.Tensor else pytree.tree_map(keep, output)


def _zero(output: Any) -> torch.Tensor:
    """The loss of what does not count: 0, with gradients of 0."""
    zero = torch.zeros(())
    for each in pytree.tree_leaves(output):
        if isinstance(each, torch.Tensor) and each.requires_grad:
            nothing = whole(torch.zeros_like(each).mul(each).sum())
            zero = zero.to(nothing.device) + nothing
    return zero


def _type_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
