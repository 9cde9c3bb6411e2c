"""A stack of blocks on two ranks, split by tracing it, beside the same model in one piece.

torchrun --nproc-per-node 2 examples/python/multi_mlp_traced.py
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from penstock.pipelining import Schedule1F1B, SplitPoint, pipeline

WIDTH, LAYERS, BATCH, MICROBATCHES, STEPS = 128, 4, 64, 4, 20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net1 = nn.Linear(width, width)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.net2(self.relu(self.net1(x)))
        return output


class MultiMLP(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)  # Every rank makes the whole model, and keeps its stage.
    torch.set_num_threads(1)
    model = MultiMLP(WIDTH, LAYERS)
    reference = copy.deepcopy(model)

    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    pipe = pipeline(model, (x[:16],), split_spec={"layers.2": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device("cpu"))
    loss_fn = nn.MSELoss(reduction="sum")
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_fn)

    module = pipe.get_stage_module(rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=1e-4)
    for step in range(STEPS):
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        loss = loss_fn(reference(x), y)
        torch.autograd.backward(loss)
        for name, parameter in module.named_parameters():
            expected = reference.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=4e-5)
        for each in (optimizer, reference_optimizer):
            each.step()
            each.zero_grad()
        if losses:
            assert torch.isclose(sum(losses, torch.tensor(0.0)), loss)
            if step % 5 == 0:
                print(f"step {step}: loss {sum(losses):.3f}, of the unsplit model {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
