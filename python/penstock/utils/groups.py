"""Groups of ranks by DeepSpeed's names: all are replicas, and share neither model nor sequence."""

from __future__ import annotations

from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch.distributed as dist

from penstock._compatibility import lacking

__all__ = [
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
]


def get_data_parallel_group() -> Any:
    """The group of all ranks."""
    return dist.group.WORLD


def get_data_parallel_rank() -> int:
    """This rank's place in it."""
    return dist.get_rank()


def get_data_parallel_world_size() -> int:
    """How many they are."""
    return dist.get_world_size()


def get_model_parallel_rank() -> int:
    """0: a model is whole on each of them, but for a PipelineModule."""
    return 0


def get_model_parallel_world_size() -> int:
    """1."""
    return 1


_SAME = {
    "data_parallel_group": get_data_parallel_group,
    "data_parallel_rank": get_data_parallel_rank,
    "data_parallel_world_size": get_data_parallel_world_size,
    "model_parallel_rank": get_model_parallel_rank,
    "model_parallel_world_size": get_model_parallel_world_size,
    "tensor_model_parallel_rank": get_model_parallel_rank,
    "tensor_model_parallel_world_size": get_model_parallel_world_size,
    "sequence_parallel_rank": get_model_parallel_rank,
    "sequence_parallel_world_size": get_model_parallel_world_size,
    "sequence_data_parallel_group": get_data_parallel_group,
    "sequence_data_parallel_rank": get_data_parallel_rank,
    "sequence_data_parallel_world_size": get_data_parallel_world_size,
}


def __getattr__(name: str) -> Any:
    """Other words for the same."""
    same = _SAME.get(name.lstrip("_").removeprefix("get_"))
    if same is not None and "get_" in name:
        return same
    raise lacking(__name__, name)
