"""What a stage hands on, as tensors with memory of their own, and what the next one makes of them.

A result that a collective still fills is waited for.  A DTensor goes as the shard that this rank
has, and a description of it follows all tensors of the tuple; the next stage puts it together on a
mesh of its own, which its get_mesh gives.  What has no memory of its own is refused by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from penstock.errors import Error

__all__ = ["GetMesh", "Tensors", "own_memory", "received", "sendable", "whole"]

Tensors = tuple[torch.Tensor | None, ...]

GetMesh = Callable[[tuple[str, ...], Any], Any]
"""Of the names of a mesh's dimensions and torch's layout of it, the mesh on this rank."""

# A description is a row of bytes of more dimensions than any result has, and begins with these.
_DIMENSIONS = 9
_MAGIC = b"penstock DTensors\n"


def sendable(outputs: Iterable[Any], stage_index: int) -> Tensors:
    """The results of a stage as tensors that can be sent; None keeps its place.

    Raises TypeError for what is no tensor, or has no memory of its own, with its place and type.
    """
    outputs = tuple(outputs)
    if len(outputs) == 1 and type(outputs[0]) is torch.Tensor and _has_memory(outputs[0]):
        return outputs
    described = []
    tensors: list[torch.Tensor | None] = []
    for place, each in enumerate(outputs):
        if is_dtensor(each):
            described.append(_description(each, place, stage_index))
            each = each.to_local(grad_placements=_placements_of_gradient(each))
        if each is None and len(outputs) > 1:
            tensors.append(None)
            continue
        if not isinstance(each, torch.Tensor):
            what = "None" if each is None else f"a {type(each).__name__}"
            raise TypeError(
                f"stage {stage_index} returned {what}{_at(place, outputs)}: stages hand on a "
                f"tensor or a tuple of tensors; wrap the module in one that takes it apart"
            )
        each = own_memory(each)
        if not _has_memory(each):
            raise TypeError(
                f"stage {stage_index} returned {_kind_of(each)}{_at(place, outputs)}, which has "
                f"no memory of its own that could be sent: return a plain tensor (stages also "
                f"hand on DTensors)"
            )
        tensors.append(each)
    if described:
        tensors.append(_as_bytes(described).to(tensors[described[0]["place"]].device))
    return tuple(tensors)


def received(tensors: Tensors, get_mesh: GetMesh | None, stage_index: int) -> Tensors:
    """The same as the stage before has returned it.

    Raises Error for a DTensor where there is no mesh for it.
    """
    last = tensors[-1] if tensors else None
    if last is None or last.dim() != _DIMENSIONS or last.dtype is not torch.uint8:
        return tensors
    text = bytes(last.flatten().tolist())
    if not text.startswith(_MAGIC):
        return tensors
    whole = list(tensors[:-1])
    for each in json.loads(text.removeprefix(_MAGIC)):
        local = whole[each["place"]]
        assert local is not None
        whole[each["place"]] = _dtensor(local, each, get_mesh, stage_index)
    return tuple(whole)


def own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, waited for where a collective still fills it."""
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is None or not isinstance(tensor, collectives.AsyncCollectiveTensor):
        return tensor
    # An operation that is no view waits; this one copies nothing.
    waited: torch.Tensor = torch.ops.aten._unsafe_view(tensor, tensor.shape)
    return waited


def is_dtensor(value: Any) -> bool:
    """Whoever has one has imported torch's; nobody else waits for that import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a DTensor, on every rank; another tensor itself, waited for."""
    gathered: Any = tensor
    return own_memory(gathered.full_tensor() if is_dtensor(tensor) else tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return False
    if type(tensor) is torch.Tensor:
        return True
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:  # A wrapper around other tensors.
        return False
    return True


def _kind_of(tensor: torch.Tensor) -> str:
    if type(tensor) is not torch.Tensor:
        return f"a {type(tensor).__name__}"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_meta:
        return "a tensor on the meta device"
    return f"a tensor of the layout {tensor.layout}"


def _at(place: int, outputs: tuple[Any, ...]) -> str:
    return f", at place {place} of what it returned" if len(outputs) > 1 else ""


def _description(dtensor: Any, place: int, stage_index: int) -> dict[str, Any]:
    mesh = dtensor.device_mesh
    layout = getattr(mesh, "_layout", None)
    axes = getattr(layout, "axes", None)
    return {
        "place": place,
        "names": list(mesh.mesh_dim_names or ()),
        "layout": axes and [[list(axis.shape), list(axis.stride)] for axis in axes],
        "placements": [_words_of(each, stage_index) for each in dtensor.placements],
        "shape": list(dtensor.shape),
        "stride": list(dtensor.stride()),
    }


def _words_of(placement: Any, stage_index: int) -> list[Any]:
    tensor = sys.modules["torch.distributed.tensor"]
    if type(placement) is tensor.Shard:
        return ["Shard", placement.dim]
    if type(placement) is tensor.Replicate:
        return ["Replicate"]
    if type(placement) is tensor.Partial:
        return ["Partial", placement.reduce_op]
    raise TypeError(
        f"stage {stage_index} returned a DTensor with the placement {placement}: between stages "
        f"placements are Shard, Replicate or Partial; redistribute it before it is returned"
    )


def _placements_of_gradient(dtensor: Any) -> list[Any]:
    """The tensor's placements, whole where it is a part of a sum: DTensor's own rule."""
    replicate = sys.modules["torch.distributed.tensor"].Replicate()
    return [replicate if each.is_partial() else each for each in dtensor.placements]


def _as_bytes(described: list[dict[str, Any]]) -> torch.Tensor:
    text = _MAGIC + json.dumps(described, separators=(",", ":")).encode()
    row = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return row.view(*[1] * (_DIMENSIONS - 1), -1)


def _dtensor(
    local: torch.Tensor, description: dict[str, Any], get_mesh: GetMesh | None, stage_index: int
) -> torch.Tensor:
    from torch.distributed import tensor

    names = tuple(description["names"])
    mesh = get_mesh(names, _layout_of(description["layout"])) if get_mesh else None
    if mesh is None:
        how = "whose get_mesh gave None for it" if get_mesh else "which has no get_mesh"
        raise Error(
            f"stage {stage_index - 1} handed on a DTensor of a mesh with the dimensions {names} to "
            f"stage {stage_index}, {how}: give PipelineStage a get_mesh, a function of the names "
            f"that returns this rank's mesh, or hand on .to_local()"
        )
    placements = [getattr(tensor, kind)(*more) for kind, *more in description["placements"]]
    return tensor.DTensor.from_local(
        local,
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(description["shape"]),
        stride=tuple(description["stride"]),
    )


def _layout_of(axes: list[list[list[int]]] | None) -> Any:
    """Torch's layout of the sender's mesh, which get_mesh may look at."""
    if axes is None:
        return None
    from torch.distributed import _mesh_layout

    layouts: Any = _mesh_layout
    return layouts._MeshLayout(
        [layouts._FlatLayout(tuple(shape), tuple(stride)) for shape, stride in axes]
    )
