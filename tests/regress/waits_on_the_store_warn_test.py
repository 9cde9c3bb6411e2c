"""A rank that waited for another filled the screen with c10d's warnings of waits that timed out.

penstock waited in slices, to hear of Ctrl-C, and c10d's store warns of each that ends by its time:
18 lines for five seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import ranks
import torch
import torch.distributed as dist

from penstock.pipelining import PipelineStage, Schedule1F1B

WORLD_SIZE = 2


def join_group(rank):
    """Over TCP: a store in a file does not warn."""
    told = Path(os.environ["STORE"]).with_name("port")
    while rank == 1 and not told.exists():
        time.sleep(0.01)
    port = int(told.read_text()) if rank == 1 else 0
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        told.with_suffix(".new").write_text(str(store.port))
        told.with_suffix(".new").rename(told)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=ranks.GROUP_TIMEOUT
    )


def main():
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    join_group(rank)
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    if rank == 1:
        time.sleep(2)
        schedule.step(target=torch.zeros(4, 4))
    else:
        schedule.step(torch.ones(4, 4))
    dist.barrier()
    dist.destroy_process_group()


def test_nothing_is_said(tmp_path):
    processes = ranks.start(__file__, WORLD_SIZE, tmp_path)
    assert ranks.wait(processes, 60) == [0] * WORLD_SIZE, ranks.logs(tmp_path)
    assert "timed out" not in ranks.logs(tmp_path)


if __name__ == "__main__":
    main()
