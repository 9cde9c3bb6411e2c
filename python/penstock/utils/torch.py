"""What scripts ask about torch, by DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch
from torch.torch_version import TorchVersion

from penstock._compatibility import refuse_in

__all__ = ["register_grad_hook", "required_torch_version"]

refuse_in(globals())


def required_torch_version(
    min_version: str | float | None = None, max_version: str | float | None = None
) -> bool:
    """Whether torch is of a version between these, which belong to it; None: any.

    Raises ValueError where both are None.
    """
    if min_version is None and max_version is None:
        raise ValueError("required_torch_version() needs min_version, max_version or both")
    found = TorchVersion(torch.__version__)
    is_enough = min_version is None or found >= str(min_version)
    return is_enough and (max_version is None or found <= str(max_version))


def register_grad_hook(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Has `hook` called with the parameter whenever its gradient has grown; what removes that."""
    return param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
