"""Joins torch.distributed, however the process was started.

`penstock.init_distributed` and `penstock.comm`; the engines call it, too.  Knows no engines.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Any

__all__ = ["get_local_rank", "init_distributed"]

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def get_local_rank() -> int:
    """This process's place among those of its machine, as its launcher says; 0 without one."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int | None = None,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Joins the default process group, unless it has been joined.

    dist_backend: "gloo", whatever is asked for: penstock runs on CPUs so far.
    timeout: of its waits; torch's default if it is None.
    init_method, rank, world_size: as for torch.distributed.init_process_group().  Without them,
        what torchrun has set; a process that nothing has launched is a world of one.
    dist_init_required: False: only looks whether it has been joined.
    The others are taken, so that calls of deepspeed.init_distributed() go on working, and not used.

    Raises RuntimeError where dist_init_required is False and it has not been joined.
    """
    del auto_mpi_discovery, distributed_port, verbose, config
    from penstock import _torch  # noqa: F401  (Says what to install.)

    # isort: split
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise RuntimeError(
            "torch.distributed is not initialised, and dist_init_required is False: call "
            "torch.distributed.init_process_group() before"
        )
    if dist_backend not in (None, "gloo"):
        warnings.warn(
            f'dist_backend is {dist_backend!r}: penstock runs on CPUs so far, with "gloo"',
            stacklevel=2,
        )
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if init_method is not None or rank >= 0:
        options |= {"init_method": init_method, "rank": rank, "world_size": world_size}
    elif not all(name in os.environ for name in _LAUNCHED) or os.environ["WORLD_SIZE"] == "1":
        options |= {"store": HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **options)
