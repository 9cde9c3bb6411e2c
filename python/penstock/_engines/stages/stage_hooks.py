"""What surrounds a stage's backward: weight gradients of its own, replicas, shards.

penstock._runtime calls a stage's hooks at the actions of its program; each kind of wrapper has a
class here.  A stage's gradients are summed over its replicas once, when its rank has run its whole
program: before, nothing is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch

from penstock._engines.stages.data_parallel import DataParallel
from penstock._engines.stages.sent_tensors import GetMesh

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

__all__ = ["RunStage", "StageHooks", "hooks_of", "is_fully_sharded"]


def is_fully_sharded(module: torch.nn.Module) -> TypeGuard[FSDPModule]:
    """Whether fully_shard() was applied to it.

    Whoever did so has imported torch's FSDP.  That takes half a second: nobody else waits for it.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


class RunStage(Protocol):
    """What is run of a stage: penstock.pipelining's stages have it, and the engine's."""

    submod: torch.nn.Module
    stage_index: int
    device: torch.device
    dw_builder: Callable[[], Callable[..., None]] | None
    tied: dict[str, torch.nn.Parameter]
    get_mesh: GetMesh | None

    @property
    def is_first(self) -> bool: ...
    @property
    def is_last(self) -> bool: ...


class StageHooks(Protocol):
    """Hooks as penstock._runtime calls them; microbatches by number."""

    def unshard(self) -> None: ...
    def reshard(self) -> None: ...
    def after_backward_input(self, microbatch: int) -> None: ...
    def after_backward(self, microbatch: int) -> None: ...
    def finish(self) -> None: ...


class NoHooks:
    """Does nothing at each of them."""

    def unshard(self) -> None:
        """UNSHARD."""

    def reshard(self) -> None:
        """RESHARD."""

    def after_backward_input(self, microbatch: int) -> None:
        """An I is over."""

    def after_backward(self, microbatch: int) -> None:
        """A B or W is over."""

    def finish(self) -> None:
        """The program is over."""


class OwnWeightGradients(NoHooks):
    """dw_builder: each I is followed by a call, and its W runs what that returned."""

    def __init__(self, builder: Callable[[], Callable[..., None]]) -> None:
        self._builder = builder
        self._runners: dict[int, Callable[..., None]] = {}

    def after_backward_input(self, microbatch: int) -> None:
        """Asks for what is left to do."""
        self._runners[microbatch] = self._builder()

    def after_backward(self, microbatch: int) -> None:
        """Does it; after a whole backward, asks and does."""
        runner = self._runners.pop(microbatch, None)
        (runner or self._builder())()


class Replicas(NoHooks):
    """DistributedDataParallel: its own reduction, of what the whole step has added."""

    def __init__(self, module: DataParallel) -> None:
        self._module = module

    def finish(self) -> None:
        """Sums them."""
        self._module.finish()


class Shards(NoHooks):
    """fully_shard: parameters stay whole from a stage's first use to the end of its program."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = [each for each in module.modules() if is_fully_sharded(each)]
        self._accumulate(True)

    def unshard(self) -> None:
        """Gathers the parameters."""
        for module in self._modules:
            module.unshard()

    def reshard(self) -> None:
        """Drops what others hold."""
        for module in self._modules:
            module.reshard()

    def finish(self) -> None:
        """Reduces what was accumulated; FSDP's own end of a backward."""
        self._accumulate(False)
        states = [module._get_fsdp_state() for module in self._modules]
        for state in reversed(states):
            for group in _parameter_groups(state):
                group.post_backward()
        roots = [state for state in states if state._is_root]
        for root in roots:
            root._root_post_backward_final_callback()
        self._accumulate(True)

    def _accumulate(self, on: bool) -> None:
        for module in self._modules:
            module.set_is_last_backward(not on)
            module.set_reshard_after_backward(not on)
            module.set_requires_gradient_sync(not on)


class Several(NoHooks):
    """Some hooks in turn."""

    def __init__(self, parts: list[NoHooks]) -> None:
        self._parts = parts

    def unshard(self) -> None:
        """Each one's."""
        for part in self._parts:
            part.unshard()

    def reshard(self) -> None:
        """Each one's."""
        for part in self._parts:
            part.reshard()

    def after_backward_input(self, microbatch: int) -> None:
        """Each one's."""
        for part in self._parts:
            part.after_backward_input(microbatch)

    def after_backward(self, microbatch: int) -> None:
        """Each one's."""
        for part in self._parts:
            part.after_backward(microbatch)

    def finish(self) -> None:
        """Each one's."""
        for part in self._parts:
            part.finish()


def hooks_of(stage: RunStage, replicas: DataParallel | None) -> StageHooks | None:
    """The hooks that the stage's module and arguments ask for.  replicas: the DDP that it has."""
    parts: list[NoHooks] = []
    if stage.dw_builder is not None:
        parts.append(OwnWeightGradients(stage.dw_builder))
    if replicas is not None:
        parts.append(Replicas(replicas))
    if any(map(is_fully_sharded, stage.submod.modules())):
        parts.append(Shards(stage.submod))
    if len(parts) > 1:
        return Several(parts)
    return parts[0] if parts else None


def _parameter_groups(state: Any) -> list[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
