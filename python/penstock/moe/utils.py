"""Parameter groups of models with experts, by DeepSpeed's names.

Nothing here is an expert of DeepSpeed's, whose layer is refused: all parameters are of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock._compatibility import refuse_in

if TYPE_CHECKING:
    import torch

__all__ = [
    "has_moe_layers",
    "is_moe_param",
    "split_params_into_different_moe_groups_for_optimizer",
    "split_params_into_shared_and_expert_params",
]

refuse_in(globals())


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """False, and no experts."""
    del m
    return False, 0


def is_moe_param(param: torch.Tensor) -> bool:
    """False."""
    del param
    return False


def split_params_into_shared_and_expert_params(
    params: Sequence[torch.nn.Parameter],
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """All of them, and none."""
    return list(params), []


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    max_group_size: int | None = None,
) -> list[Mapping[str, Any]]:
    """The groups themselves, as a list."""
    del max_group_size
    if isinstance(param_groups, Mapping):
        return [param_groups]
    if not isinstance(param_groups, list | tuple):
        raise ValueError(
            f"param_groups is a {type(param_groups).__name__}, must be a group or a list of groups"
        )
    return list(param_groups)
