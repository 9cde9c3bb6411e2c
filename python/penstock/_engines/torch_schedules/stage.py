"""Stages: a module, its place in the pipeline, and the group of ranks that share the pipeline.

    stage = PipelineStage(module, stage_index=rank, num_stages=2, device=torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)

What a stage returns is what the next one gets: a tensor or a tuple of tensors, of any types and
sizes, which may change with those of the model's inputs.  Keyword arguments of a step go to the
stages of the rank that passes them, and are not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from penstock import _arguments
from penstock._compatibility import member, published_as
from penstock._engines.ranks import process_groups
from penstock._engines.stages.sent_tensors import GetMesh
from penstock._engines.torch_schedules.action_part import ActionPart
from penstock._engines.torch_schedules.actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    _Action,
    _ComputationType,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


__all__ = [
    "PipelineStage",
    "PipeliningMetadataError",
    "_PipelineStage",
    "_PipelineStageBase",
    "build_stage",
]


class PipeliningMetadataError(RuntimeError):
    """Arguments or results of a stage that cannot go from rank to rank."""


class _PipelineStageBase:
    """What schedules know of a stage.

    submod: the module; it runs in train() or eval() as it is set.
    stage_index, num_stages: its place in the model.
    group, group_rank, group_size: the ranks of the pipeline.
    tied: parameters that other stages have, too (see tie()).
    """

    submod: torch.nn.Module
    stage_index_to_group_rank: dict[int, int] | None

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        group: ProcessGroup | DeviceMesh | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: GetMesh | None = None,
    ) -> None:
        self.num_stages = _arguments.integer("num_stages", num_stages)
        self.stage_index = _arguments.integer("stage_index", stage_index)
        if not 0 <= self.stage_index < self.num_stages:
            raise ValueError(
                f"stage_index is {stage_index}, must be 0 to {num_stages - 1}: "
                f"num_stages is {num_stages}"
            )
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f'device is {self.device}, must be "cpu" or "cuda"')
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device is {self.device}, but torch {torch.__version__} sees no CUDA device here"
            )
        self.submod = submodule
        self.dw_builder = dw_builder
        self.get_mesh = get_mesh
        self.group = process_groups.resolve(group)
        self.group_rank = torch.distributed.get_rank(self.group)
        self.group_size = torch.distributed.get_world_size(self.group)
        if self.group_size > self.num_stages:
            raise RuntimeError(
                f"the group has {self.group_size} ranks for {num_stages} stages: each rank needs a "
                f"stage"
            )
        self.stage_index_to_group_rank = {
            stage: stage % self.group_size for stage in range(self.num_stages)
        }
        self.tied: dict[str, torch.nn.Parameter] = {}
        # While a function of the user's runs: what it stands in for (custom_functions.py).
        # The stage before, if the schedule has it on this rank.
        self.before: _PipelineStageBase | None = None
        self.parts: dict[tuple[_ComputationType, int | None], ActionPart] = {}

    def __getattr__(self, name: str) -> Any:
        return member("penstock.pipelining.stage", "PipelineStage", self, name)

    @property
    def is_first(self) -> bool:
        """Whether it takes the model's inputs."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether it returns the model's outputs."""
        return self.stage_index == self.num_stages - 1

    def tie(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Says that `parameter` is the same weight as what other stages tie by this name.

        All get the value that the first of these stages has, when a schedule first runs, and after
        each step the sum of the gradients of all.
        """
        if name in self.tied:
            raise ValueError(f"stage {self.stage_index} has tied {name!r} already")
        self.tied[name] = parameter

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: Any = (), kwargs: Any = None, **more: Any
    ) -> Any:
        """Runs the F of a microbatch, in a function registered for it; what the module returned.

        args, kwargs: other arguments than the step's; args on the first stage.
        """
        del more
        return self._part(FORWARD, fwd_chunk_id).forward(args, kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **more: Any
    ) -> None:
        """Runs the B of a microbatch, or, without full_backward, its I."""
        del more
        kind = FULL_BACKWARD if full_backward else BACKWARD_INPUT
        self._part(kind, bwd_chunk_id).backward(loss)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, **more: Any) -> None:
        """Runs the W of a microbatch.  Raises AssertionError, as torch, where its I did not run."""
        del more
        if (BACKWARD_WEIGHT, bwd_chunk_id) not in self.parts:
            raise AssertionError(
                f"stage {self.stage_index}, microbatch {bwd_chunk_id}: backward_weight_one_chunk() "
                f"runs behind backward_one_chunk(full_backward=False), in a function that is "
                f"registered for W"
            )
        self._part(BACKWARD_WEIGHT, bwd_chunk_id).backward(None)

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Hands on, in a function for F, what the stage before on this rank returned."""
        before = self.before
        if before is not None:
            before._part(FORWARD, mb_index).check_made(prev_stage_outputs)

    def get_local_bwd_output(self, mb_index: int) -> tuple[()]:
        """Gives nothing, in a function for B: the runtime hands on the gradients of its input."""
        del mb_index
        return ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[Any, ...], mb_index: int) -> None:
        """Takes, in a function for B, what get_local_bwd_output() of the next stage gave."""
        if next_stage_bwd_outputs != ():
            raise ValueError(
                f"stage {self.stage_index}, microbatch {mb_index}: gradients are handed on by the "
                f"runtime; give what get_local_bwd_output() gave"
            )

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Divides the gradients of its parameters.

        In a registered function it does nothing: the schedule divides when the step is over.
        """
        parts = list(self.parts.values())
        if not parts:
            for parameter in self.submod.parameters():
                if parameter.grad is not None and grad_scale_factor != 1:
                    parameter.grad.div_(grad_scale_factor)
        elif grad_scale_factor not in parts[0].divisors:
            raise ValueError(
                f"stage {self.stage_index}: gradients are scaled by scale_grads of the schedule, "
                f"not by {grad_scale_factor}"
            )

    def clear_runtime_states(self) -> None:
        """Does nothing: nothing of a step is left when it ends."""

    def _part(self, kind: _ComputationType, microbatch: int) -> ActionPart:
        part = self.parts.get((kind, microbatch))
        if part is None:
            action = _Action(self.stage_index, kind, microbatch)
            raise RuntimeError(f"{action} runs only in a function that is registered for it")
        return part


class PipelineStage(_PipelineStageBase):
    """A stage made by hand.

    input_args, output_args, input_grads, output_grads: examples, one tensor or a tuple; they are
    checked to be tensors, and not needed: shapes are those of each step.
    dw_builder: called after each backward of the stage's input; what it returns is called to add
    the gradients of the weights, as W, or at once where the backward is not split.
    get_mesh: for DTensors that the stage before hands on: of the names of their mesh's dimensions
        and torch's layout of it, the mesh on this rank.
    """

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        input_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        input_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        group: ProcessGroup | DeviceMesh | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: GetMesh | None = None,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, device, group, dw_builder, get_mesh)
        _check_examples("input_args", input_args, (torch.Tensor,))
        _check_examples("output_args", output_args, (torch.Tensor,))
        _check_examples("output_grads", output_grads, (torch.Tensor, type(None)))
        _check_examples("input_grads", input_grads, (torch.Tensor, type(None)))


class _PipelineStage(_PipelineStageBase):
    """A stage of a traced model; `pipe_info` is what Pipe.info() gives.

    The parameters that it shares with other stages are tied.
    """

    def __init__(
        self,
        stage_module: torch.nn.Module,
        stage_index: int,
        pipe_info: Any,
        device: torch.device,
        group: ProcessGroup | DeviceMesh | None = None,
    ) -> None:
        super().__init__(stage_module, stage_index, pipe_info.num_stages, device, group)
        self.pipe_info = pipe_info
        parameters = {_traced_name(path): each for path, each in stage_module.named_parameters()}
        for name, stages in pipe_info.tied_parameters.items():
            if self.stage_index in stages:
                self.tie(name, parameters[name])


def _traced_name(path: str) -> str:
    """The name that a parameter had before its module was wrapped in DDP, or compiled."""
    return path.replace("_orig_mod.", "").removeprefix("module.")


def build_stage(
    stage_module: torch.nn.Module,
    stage_index: int,
    pipe_info: Any,
    device: torch.device,
    group: ProcessGroup | DeviceMesh | None = None,
) -> _PipelineStage:
    """The stage of a traced model whose module has been changed since: wrapped in DDP, say."""
    return _PipelineStage(stage_module, stage_index, pipe_info, device, group)


def _check_examples(name: str, value: Any, allowed: tuple[type, ...]) -> None:
    if value is None:
        return
    for number, each in enumerate(value if isinstance(value, tuple | list) else [value]):
        if not isinstance(each, allowed):
            raise PipeliningMetadataError(
                f"{name}[{number}] is of type {type(each).__name__}, must be a tensor: all "
                f"positional arguments of a stage are; others go as keyword arguments"
            )


published_as("penstock.pipelining.stage", globals())
