"""schedule.eval() left the parameters of a stage under fully_shard whole.

fully_shard does not reshard its root after a forward.  An optimizer that was made then held the
whole parameters, which nobody reads again: the loss stayed as it was, and nothing was said.
"""

from __future__ import annotations

import ranks
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from penstock.pipelining import PipelineStage, Schedule1F1B

WORLD_SIZE = 2


def check_optimizer_made_after_an_evaluation_updates(group):
    del group
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "dp"))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    fully_shard(module[0], mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])
    stage = PipelineStage(module, 0, 1, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=torch.nn.MSELoss())
    x = torch.randn(8, 4)
    y = x.sum(1, keepdim=True)

    schedule.eval(x, target=y)
    assert all(isinstance(each, DTensor) for each in module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    means = []
    for _ in range(5):
        losses: list[torch.Tensor] = []
        schedule.step(x, target=y, losses=losses)
        means.append(torch.stack(losses).mean().item())
        optimizer.step()
        optimizer.zero_grad()
    assert means[-1] < 0.8 * means[0], means


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
