"""penstock.emulate: a step of one's own layers on devices that are not there.

The layers are those of a PipelineModule, run by the library's Trainer on ranks that are threads.
Tensors have sizes and no values.  docs/emulate.md says what is exact, and what is estimated.
"""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _arguments, _torch
from penstock._compatibility import published_as
from penstock._engines.pipeline.layer_specs import LayerSpec, TiedLayerSpec
from penstock._foreign_files import read_foreign
from penstock._json_values import as_json
from penstock.errors import ConfigError, Error

if TYPE_CHECKING:
    from penstock._runtime import EmulatedStep

__all__ = ["emulate"]

_BYTES_MOST = 1 << 20  # kBytesMax in penstock/core/json/tree.h.

Tensors = torch.Tensor | Sequence[torch.Tensor]


def emulate(
    layers: Iterable[Any],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    inputs: Tensors,
    targets: Tensors,
    config: Mapping[str, Any] | str | Path,
    *,
    device: str | Path = "h100-sxm",
    devices_per_host: int | None = None,
    value_read: float | None = None,
    output: str | Path | None = None,
) -> EmulatedStep:
    """What a step of these layers would take on such devices; needs a torch for CPUs.

        >>> report = penstock.emulate(
        ...     [LayerSpec(Embedding), LayerSpec(Block), LayerSpec(Block), LayerSpec(Head)],
        ...     torch.nn.functional.cross_entropy,
        ...     inputs,
        ...     targets,
        ...     {"mesh": {"pipe": 4, "data": 2}, "gradient_accumulation_steps": 8},
        ... )
        >>> report.step_s, report.samples_per_s, report.share_of_peak
        >>> [rank.peak_bytes for rank in report.ranks]

    layers: each a LayerSpec, a TiedLayerSpec, a module, or a function, in the model's order, and
        called with what the one before returned: a tensor or a tuple of tensors.  Each rank makes
        those of its stages; of a module it has a copy.
    loss_fn: of the last layer's output and the targets; a scalar.
    inputs, targets: a replica's batch, in host memory: tensors, or tuples of them.
    config: the keys of `penstock train` (docs/configuration.md) but for those of sections model and
        data, as a dict or the path of a JSON file.  There are as many ranks as `mesh` says.
    device: a name or a file, as of `penstock emulate`; devices_per_host: None: as such hosts have.
    value_read: what all values are to a layer that reads some in the host, by item() for one.
    output: a folder for what `penstock report` shows of one more step, made if need be.

    The devices are "cuda" to torch, from the first call to the end of the process.

    Raises ConfigError for what does not fit; Error where a device's memory does not do, and where
    a layer reads a value and value_read is None; else what a layer raises.
    """
    runtime = _torch.load()
    name = "config" if isinstance(config, Mapping) else os.fspath(config)
    text = (
        as_json(config, name)
        if isinstance(config, Mapping)
        else read_foreign(name, _BYTES_MOST).decode("utf-8")
    )
    report: EmulatedStep = runtime.emulate(
        text,
        name,
        _given(list(layers)),
        lambda outputs, wanted: loss_fn(_as_one(outputs), _as_one(wanted)),
        (_tensors("inputs", inputs), _tensors("targets", targets)),
        os.fspath(device),
        _arguments.optional_integer("devices_per_host", devices_per_host),
        None if value_read is None else _arguments.number("value_read", value_read),
        "" if output is None else os.fspath(output),
    )
    return report


@dataclass(frozen=True)
class _Given:
    """A layer as the runtime takes it.  key: of its tie; tied: the parameters, none: all."""

    name: str
    type: str
    make: Callable[[], _Made]
    key: str | None = None
    tied: Sequence[str] = ()


class _Made:
    """A rank's layer."""

    needs_engine = False  # Unless its graph shows that it does.
    splits_backward = True

    def __init__(self, module: torch.nn.Module | None, call: Callable[[Any], Any]) -> None:
        self._call = call
        if module is None:
            module = torch.nn.Module()
        elif any(each.is_meta for each in (*module.parameters(), *module.buffers())):
            module.to_empty(device="cpu")  # Takes no memory until somebody writes to it.
        self.parameters = list(module.named_parameters())
        self.buffers = list(module.named_buffers())

    def forward(self, microbatch: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
        del microbatch
        try:
            value = self._call(_as_one(values))
        except Exception as error:
            if (place := _calls_torch_distributed(error)) is not None:
                raise Error(
                    f"{place} calls torch.distributed, and ranks of an emulated step are threads, "
                    f"which are no ranks of it: a layer has no collectives of its own there"
                ) from error
            raise
        found = tuple(value) if isinstance(value, tuple | list) else (value,)
        if all(each is None or isinstance(each, torch.Tensor) for each in found):
            return found
        raise TypeError(f"a layer returned {value!r:.80}, must be a tensor or a tuple of tensors")


def _given(layers: list[Any]) -> list[_Given]:
    return [_layer(str(i), each, layers) for i, each in enumerate(layers)]


def _layer(name: str, layer: Any, layers: list[Any]) -> _Given:
    if isinstance(layer, TiedLayerSpec):
        alike = [each for each in layers if isinstance(each, TiedLayerSpec)]
        kinds = {each.typename for each in alike if each.key == layer.key}
        return _Given(
            name,
            layer.typename.__name__,
            lambda: _tied(layer),
            layer.key,
            layer.tied_weight_attr if len(kinds) > 1 else (),
        )
    if isinstance(layer, LayerSpec):
        return _Given(name, layer.typename.__name__, lambda: _of_module(layer.build()))
    if isinstance(layer, torch.nn.Module):
        return _Given(name, type(layer).__name__, lambda: _of_module(copy.deepcopy(layer)))
    if callable(layer):
        return _Given(name, getattr(layer, "__name__", "function"), lambda: _Made(None, layer))
    raise ConfigError(f"layer {name} is {layer!r:.80}, must be a LayerSpec, a module or a function")


def _of_module(module: torch.nn.Module) -> _Made:
    return _Made(module, module)


def _tied(layer: TiedLayerSpec) -> _Made:
    module, forward = layer.build(), layer.forward_fn
    return _Made(module, module if forward is None else lambda value: forward(module, value))


def _as_one(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _tensors(name: str, given: Tensors) -> list[torch.Tensor]:
    tensors = [given] if isinstance(given, torch.Tensor) else list(given)
    if not tensors or not all(isinstance(each, torch.Tensor) for each in tensors):
        raise ConfigError(f"{name} must be a tensor, or a tuple of tensors")
    return tensors


def _calls_torch_distributed(error: Exception) -> str | None:
    """The file and line whose call into torch.distributed has raised it."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith("torch.distributed"):
            return place
        place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return None


published_as("penstock", globals())
