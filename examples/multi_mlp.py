"""A MultiMLP in stages made by hand, on two ranks, by a schedule's name or a program in a CSV file.

    python examples/multi_mlp.py
    python examples/multi_mlp.py ZBVZeroBubble
    penstock schedule zb_h1 --ranks 2 --microbatches 8 --format csv -o mine.csv
    python examples/multi_mlp.py mine.csv

Prints the loss of every tenth step, and at the end how far the gradients are from those of the
unsplit model.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from penstock.pipelining import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    PipelineStage,
    get_schedule_class,
)
from penstock.pipelining.schedules import _PipelineSchedule, _PipelineScheduleRuntime
from penstock.schedule import load

RANKS = 2
MICROBATCHES = 8
WIDTH = 64
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class MLP(torch.nn.Module):
    """net1, ReLU, net2."""

    def __init__(self) -> None:
        super().__init__()
        self.net1 = torch.nn.Linear(WIDTH, WIDTH)
        self.net2 = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The blocks' result, as wide as x."""
        result: torch.Tensor = self.net2(torch.relu(self.net1(x)))
        return result


def here(program: str, rank: int) -> list[int]:
    """The stages of this rank."""
    if program.endswith(".csv"):
        cells = load(program).programs[rank]
        return sorted({int(cell.partition("F")[0]) for cell in cells if cell[-2:-1] == "F"})
    if not issubclass(get_schedule_class(program), PipelineScheduleMulti):
        return [rank]
    return [rank, 2 * RANKS - 1 - rank if program in V_SHAPED else rank + RANKS]


def make_schedule(program: str, stages: list[PipelineStage]) -> _PipelineSchedule:
    """The schedule of that name, or the program in that file."""
    loss = torch.nn.MSELoss()
    if program.endswith(".csv"):
        schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss)
        schedule._load_csv(program)
        return schedule
    kind = get_schedule_class(program)
    if issubclass(kind, PipelineScheduleMulti):
        return kind(stages, MICROBATCHES, loss_fn=loss)
    if issubclass(kind, PipelineScheduleSingle):
        return kind(stages[0], MICROBATCHES, loss_fn=loss)
    raise ValueError(f"{program} is no schedule that trains")


def train(rank: int, folder: str, program: str, stages_in_all: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(MLP() for _ in range(stages_in_all)))
    unsplit = copy.deepcopy(model)
    mine = here(program, rank)
    stages = [PipelineStage(model[i], i, stages_in_all, torch.device("cpu")) for i in mine]
    parameters = [each for i in mine for each in model[i].parameters()]
    schedule = make_schedule(program, stages)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    x = torch.randn(64, WIDTH)
    y = torch.sin(x)
    for step in range(1, 31):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        ends: dict[str, Any] = {"target": y, "losses": losses} if stages_in_all - 1 in mine else {}
        schedule.step(*((x,) if 0 in mine else ()), **ends)
        if step == 1:
            torch.nn.MSELoss()(unsplit(x), y).backward()
            plain = [each for i in mine for each in unsplit[i].parameters()]
            torch.testing.assert_close(
                [each.grad for each in parameters],
                [each.grad for each in plain],
                rtol=1e-5,
                atol=4e-5,
            )
        optimizer.step()
        if losses and step % 10 == 0:
            print(f"step {step}: loss {torch.stack(losses).mean():.4f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks."""
    program = sys.argv[1] if len(sys.argv) > 1 else "1F1B"
    count = 1 + max(max(here(program, rank)) for rank in range(RANKS))
    with tempfile.TemporaryDirectory() as folder:
        start: Any = spawn
        start(train, (folder, program, count), nprocs=RANKS)
    print(f"{program} on {RANKS} ranks, {count} stages: gradients as in one process")


if __name__ == "__main__":
    main()
