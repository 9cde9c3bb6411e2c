"""torch.distributed by DeepSpeed's name for it: `import penstock.comm as dist`.

What is not here is torch.distributed's own: get_rank, barrier, all_reduce, ReduceOp and all others.
"""

from __future__ import annotations

from typing import Any

from penstock._compatibility import lacking
from penstock._distributed import get_local_rank, init_distributed

__all__ = ["get_all_ranks_from_group", "get_local_rank", "get_world_group", "init_distributed"]


def get_world_group() -> Any:
    """The group of all ranks."""
    import torch.distributed as dist

    return dist.group.WORLD


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    """The ranks of a group; None: all."""
    import torch.distributed as dist

    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)


def __getattr__(name: str) -> Any:
    import torch.distributed as dist

    if name == "inference_all_reduce":
        return dist.all_reduce
    if not hasattr(dist, name):
        raise lacking(__name__, name)
    return getattr(dist, name)
