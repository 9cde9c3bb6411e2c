"""A rank that waited for another filled the screen with c10d's warnings of waits that timed out.

penstock waited in slices, to hear of Ctrl-C, and c10d warns of each that ends by its time: 18 lines
for five seconds.
"""

from __future__ import annotations

import os
import time

import ranks
import torch

WORLD_SIZE = 2


def check_late_rank(group):
    from penstock.pipelining import PipelineStage, Schedule1F1B

    rank = int(os.environ["RANK"])
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    if rank == 1:
        time.sleep(2)
        schedule.step(target=torch.zeros(4, 4))
    else:
        schedule.step(torch.ones(4, 4))


def test_nothing_is_said(tmp_path):
    processes = ranks.start(__file__, WORLD_SIZE, tmp_path)
    assert ranks.wait(processes, 60) == [0] * WORLD_SIZE, ranks.logs(tmp_path)
    for rank in range(WORLD_SIZE):
        assert '"outcome": ""' in (tmp_path / f"outcomes-{rank}.jsonl").read_text()
    assert "timed out" not in ranks.logs(tmp_path)


if __name__ == "__main__":
    ranks.main(globals())
