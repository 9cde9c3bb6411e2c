"""Parameters under ZeRO 3, by DeepSpeed's names.

partitioned_param_data_shape: what DeepSpeed's parameters have whose values are away.
zero_wrapper_for_fp_tensor_constructor, _orig_torch_arange and get_accelerator: transformers
replaces the first while a model is made in Init, so that torch.arange keeps its type.  Init leaves
torch's functions as they are, and casts what a constructor has made: nobody calls the replacement.

`penstock.runtime.zero.partition_parameters` is this module.
"""

from collections.abc import Callable
from typing import Any

import torch

from penstock._compatibility import refuse_in
from penstock._engines.parameters.external_parameters import (
    register_external_parameter,
    unregister_external_parameter,
)
from penstock._engines.parameters.gathered_parameters import (
    GatheredParameters,
    unwrap_model_for_generation,
)
from penstock._engines.parameters.zero_init import Init
from penstock._engines.parameters.zero_parameter import ZeroParameter, ZeroParamStatus
from penstock.accelerator import get_accelerator

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "ZeroParameter",
    "get_accelerator",
    "register_external_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
    "zero_wrapper_for_fp_tensor_constructor",
]

refuse_in(globals())

partitioned_param_data_shape = [0]
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., torch.Tensor], target_fp_dtype: torch.dtype | None, target_device: Any
) -> Callable[..., torch.Tensor]:
    """`fn` with another type and place of what it makes, where the caller gives none."""

    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is None and target_device is not None:
            kwargs["device"] = target_device
        tensor = fn(*args, **kwargs)
        casts = target_fp_dtype is not None and tensor.is_floating_point()
        return tensor.to(target_fp_dtype) if casts else tensor

    return made
