"""A stage's layers, one after the other, as the module that penstock._runtime's stages run.

Between layers goes one value: a tensor or a tuple of tensors.  Stages hand on flat tuples, so a
tuple that would look like another value is marked on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from penstock._engines.stages.sent_tensors import GetMesh
from penstock.errors import ConfigError

__all__ = ["Checkpointing", "Layer", "RunStage", "Seeds", "Stage"]

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Layer:
    """A layer of a rank.  module: its own, or the one that it shares; None of a function."""

    index: int
    name: str
    call: Callable[[Any], Any]
    module: torch.nn.Module | None


@dataclass(frozen=True)
class Seeds:
    """What random numbers of a layer depend on: its index, and the microbatch.

    set: gets the seed of a layer before it is made, and before each forward of it.
    """

    base: int
    set: Callable[[int], Any]

    def before_build(self, layer: int) -> None:
        """Seeds the making of layer number `layer`."""
        self.set(self.base + layer)

    def before_forward(self, layer: int, microbatch: int) -> None:
        """Seeds its forward number `microbatch`, counted from 0 over all steps."""
        self.set(self.base * (microbatch + 1) + layer)


@dataclass(frozen=True)
class Checkpointing:
    """How many layers have their activations computed again together; 0: all are kept.

    function: gets what is to be computed again, and its arguments.
    names: of the classes, all of which a block must have to be computed again; None: any block that
        has parameters.
    """

    interval: int = 0
    function: Callable[..., Any] | None = None
    names: frozenset[str] | None = None

    def covers(self, block: Sequence[Layer]) -> bool:
        """Whether a block of layers is computed again."""
        if self.interval == 0:
            return False
        if self.names is not None:
            return all(type(layer.module).__name__ in self.names for layer in block)
        return any(
            layer.module is not None and any(True for _ in layer.module.parameters())
            for layer in block
        )

    def run(self, compute: Callable[..., Any], *values: Any) -> Any:
        """compute(*values), whose activations are computed again for the backward."""
        if self.function is None:
            return checkpoint(compute, *values, use_reentrant=False)
        # A reentrant checkpoint, which it may be, trains nothing where no input takes a gradient.
        if not any(_takes_gradient(each) for each in values):
            values = tuple(_taking_gradient(each) for each in values)
        return self.function(compute, *values)


def _takes_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _taking_gradient(value: Any) -> Any:
    can = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return value.detach().requires_grad_() if can else value


class Stage(torch.nn.Module):
    """Some layers.  The first stage gets the model's input, the others what the one before gave.

    forwards: of training so far, which the layers' seeds count.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        checkpointing: Checkpointing,
        seeds: Seeds | None,
        *,
        is_first: bool,
        is_last: bool,
    ) -> None:
        super().__init__()
        self.layers = layers
        self.modules_here = torch.nn.ModuleList(
            layer.module for layer in layers if layer.module is not None
        )
        self._checkpointing = checkpointing
        self._seeds = seeds
        self._is_first = is_first
        self._is_last = is_last
        self.forwards = 0

    def forward(self, *values: Any) -> Any:
        """The last stage gives what the model gives, the others what Stage.forward() takes."""
        value = values[0] if self._is_first else _received(values)
        microbatch = self.forwards
        self.forwards += torch.is_grad_enabled()
        for block in self._blocks():
            value = self._run(block, value, microbatch)
        return value if self._is_last else _sent(value, self.layers[-1])

    def _blocks(self) -> list[Sequence[Layer]]:
        size = self._checkpointing.interval or len(self.layers)
        return [self.layers[i : i + size] for i in range(0, len(self.layers), size)]

    def _run(self, block: Sequence[Layer], value: Any, microbatch: int) -> Any:
        is_tuple = isinstance(value, tuple)

        def compute(*values: Any) -> Any:
            each = values if is_tuple else values[0]
            for layer in block:
                if self._seeds is not None:
                    self._seeds.before_forward(layer.index, microbatch)
                each = layer.call(each)
            return each

        values = value if is_tuple else (value,)
        if not (torch.is_grad_enabled() and self._checkpointing.covers(block)):
            return compute(*values)
        found = self._checkpointing.run(compute, *values)
        if self._checkpointing.function is not None:
            _check_trains(block, found)
        return found


def _check_trains(block: Sequence[Layer], found: Any) -> None:
    """Raises ConfigError where a block's parameters would silently get no gradient."""
    trains = any(
        each.requires_grad
        for layer in block
        if layer.module is not None
        for each in layer.module.parameters()
    )
    outputs = found if isinstance(found, tuple) else (found,)
    if trains and not any(_takes_gradient(each) for each in outputs):
        raise ConfigError(
            f"{block[0].name}: activation_checkpoint_func returned what takes no gradient, so its "
            f"parameters would not be trained; a reentrant checkpoint does so where all inputs are "
            f"integers: use_reentrant=False does not, or leave this layer out by "
            f"checkpointable_layers"
        )


def _sent(value: Any, layer: Layer) -> Any:
    """A value as a flat tuple, or a tensor; None at its end marks a tuple that looks otherwise."""
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, tuple):
        raise TypeError(f"{layer.name} returned {_type_of(value)}: {_ALLOWED}")
    for place, each in enumerate(value):
        if not (isinstance(each, torch.Tensor) or each is None):
            raise TypeError(
                f"{layer.name} returned {_type_of(each)} at place {place} of a tuple: {_ALLOWED}"
            )
    is_plain = len(value) > 1 and value[-1] is not None
    return value if is_plain else (*value, None)


def _received(values: tuple[Any, ...]) -> Any:
    if values[-1] is None:
        return values[:-1]
    return values if len(values) > 1 else values[0]


_ALLOWED = "between stages go a tensor or a tuple of tensors"


def _type_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@dataclass
class RunStage:
    """A stage as penstock.pipelining._run takes it."""

    submod: torch.nn.Module
    stage_index: int
    tied: dict[str, torch.nn.Parameter]
    is_first: bool
    is_last: bool
    dw_builder: Callable[[], Callable[..., None]] | None = None
    get_mesh: GetMesh | None = None
    device: torch.device = _HOST
