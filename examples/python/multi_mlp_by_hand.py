"""A stack of blocks on two ranks with two stages each, split by hand, in a zero-bubble schedule.

torchrun --nproc-per-node 2 examples/python/multi_mlp_by_hand.py
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from penstock.pipelining import PipelineStage, ScheduleZBVZeroBubble

WIDTH, STAGES, BATCH, MICROBATCHES, STEPS = 128, 4, 64, 8, 20


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # Every rank makes the whole model, and keeps its stages.
    torch.set_num_threads(1)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        for _ in range(STAGES)
    ]
    reference = copy.deepcopy(nn.Sequential(*blocks))

    mine = [rank, 2 * ranks - 1 - rank]  # Runs to and fro: the first rank has the last stage, too.
    stages = [PipelineStage(blocks[i], i, STAGES, torch.device("cpu")) for i in mine]
    loss_fn = nn.MSELoss()
    schedule = ScheduleZBVZeroBubble(stages, MICROBATCHES, loss_fn=loss_fn)

    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    parameters = [parameter for i in mine for parameter in blocks[i].parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    reference_optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3)
    for step in range(STEPS):
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x, target=y, losses=losses)
        else:
            schedule.step()
        loss = loss_fn(reference(x), y)
        torch.autograd.backward(loss)
        for i in mine:
            for name, parameter in blocks[i].named_parameters():
                expected = reference.get_parameter(f"{i}.{name}").grad
                torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=4e-5)
        for each in (optimizer, reference_optimizer):
            each.step()
            each.zero_grad()
        if losses:
            mean = sum(losses, torch.tensor(0.0)) / MICROBATCHES
            assert torch.isclose(mean, loss)
            if step % 5 == 0:
                print(f"step {step}: loss {mean:.4f}, of the unsplit model {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
