"""What modules and schedulers have besides parameters: buffers, extra states, a course's numbers.

Knows no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._engines.saving.pieces import Pieces

__all__ = ["buffers_of", "digest", "equal", "put_buffers", "state_of", "with_extra_states"]


def with_extra_states(pieces: Pieces) -> dict[str, tuple[str, torch.nn.Module]]:
    """Modules with a state besides parameters and buffers, and their prefixes, by name."""
    return {
        (prefix + path).rstrip("."): (prefix, each)
        for prefix, module in pieces.modules.items()
        for path, each in module.named_modules()
        if type(each).get_extra_state is not torch.nn.Module.get_extra_state
    }


def buffers_of(pieces: Pieces) -> dict[str, torch.Tensor]:
    return {
        prefix + name: each.detach()
        for prefix, module in pieces.modules.items()
        for name, each in module.named_buffers(remove_duplicate=False)
    }


def put_buffers(pieces: Pieces, saved: Mapping[str, torch.Tensor]) -> None:
    """This replica's own, those that no state_dict() has, too."""
    for prefix, module in pieces.modules.items():
        for name, buffer in module.named_buffers(remove_duplicate=False):
            value = saved.get(prefix + name)
            if value is None:
                continue
            if value.shape == buffer.shape:
                buffer.detach().copy_(value)
            else:
                path, _, last = name.rpartition(".")
                module.get_submodule(path)._buffers[last] = value.to(buffer.device, buffer.dtype)


def digest(name: str, tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        raise ConfigError(
            f"the buffer {name} is of {tensor.layout}: a checkpoint holds dense tensors"
        )
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = host.reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def state_of(course: Any) -> dict[str, Any]:
    found: dict[str, Any] = course.state_dict() if hasattr(course, "state_dict") else {}
    return found


def equal(one: Any, other: Any) -> bool:
    """Whether values are, tensors in them too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)
