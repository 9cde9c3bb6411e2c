"""Training in 16 bits: what a configuration says about it, and the cast of a model.

Copies in 32 bits and the scale of losses are C++ (penstock/runtime/update/master_weights.h,
gradient_scale.h).  Knows no ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from penstock import _torch
from penstock._engines.parameters.zero_parameter import ZeroParameter, ZeroParamStatus
from penstock.configuration import Configuration
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._runtime import GradientScale

__all__ = ["cast", "cast_tensors", "gradient_scale_of", "type_of"]

_HERE = ZeroParamStatus.AVAILABLE


def type_of(configuration: Configuration) -> torch.dtype | None:
    """What a model is cast to: that of the section bf16 or fp16 which is enabled, or None."""
    for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if configuration.settings[key]["enabled"]:
            return dtype
    return None


def cast(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Casts floating-point parameters and buffers in place.

    Raises ConfigError for parameters of another type that are spread already.
    """
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, ZeroParameter) or parameter.ds_status is _HERE:
            continue
        if parameter.is_floating_point() and parameter.dtype != dtype:
            raise ConfigError(
                f'parameter "{name}" was spread as {parameter.dtype}: make it in '
                f"zero.Init(dtype={dtype})"
            )
    cast_tensors(module.parameters(), dtype)
    cast_tensors(module.buffers(), dtype)


def cast_tensors(tensors: Iterable[torch.Tensor | None], dtype: torch.dtype) -> None:
    """Casts those of floating-point types in place."""
    for tensor in tensors:
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype:
            tensor.data = tensor.data.to(dtype)


def gradient_scale_of(configuration: Configuration) -> GradientScale:
    """The scale that the section fp16 says."""
    make: type[GradientScale] = _torch.load().GradientScale
    return make(**configuration.settings["fp16"])
