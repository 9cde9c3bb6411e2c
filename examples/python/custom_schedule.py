"""A schedule of one's own, from a file: looked at, proved, then run on two ranks.

torchrun --nproc-per-node 2 examples/python/custom_schedule.py [FILE.csv]
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import penstock
from penstock.pipelining import PipelineStage
from penstock.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, STAGES, BATCH = 64, 4, 32


def main() -> None:
    file = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_suffix(".csv"))
    report = penstock.lint(file, backward=2)
    if not report:
        sys.exit(str(report))
    programs = report.schedule.programs
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        print(report)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(STAGES)]
    reference = copy.deepcopy(nn.Sequential(*blocks))
    mine = [i for i in range(STAGES) if f"{i}F0" in programs[rank]]
    stages = [PipelineStage(blocks[i], i, STAGES, torch.device("cpu")) for i in mine]
    loss_fn = nn.MSELoss()
    schedule = _PipelineScheduleRuntime(stages, report.schedule.microbatches, loss_fn=loss_fn)
    schedule._load_csv(file)

    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    losses: list[torch.Tensor] = []
    schedule.step(
        *([x] if 0 in mine else []), target=y if STAGES - 1 in mine else None, losses=losses
    )
    loss = loss_fn(reference(x), y)
    torch.autograd.backward(loss)
    for i in mine:
        for name, parameter in blocks[i].named_parameters():
            expected = reference.get_parameter(f"{i}.{name}").grad
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=4e-5)
    if losses:
        mean = sum(losses, torch.tensor(0.0)) / len(losses)
        print(f"loss {mean:.5f}, of the unsplit model {loss:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
