"""The reference workload: a MultiMLP, its stages, and the unsplit model beside them."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from penstock.pipelining.schedules import PipelineScheduleMulti
from penstock.pipelining.stage import PipelineStage

CPU = torch.device("cpu")
# Where schedules of two ranks have their stages.
PLACEMENTS = {
    "GPipe": [[0], [1]],
    "1F1B": [[0], [1]],
    "ZBVZeroBubble": [[0, 3], [1, 2]],
    "DualPipeV": [[0, 3], [1, 2]],
}
LOOP = [[0, 2], [1, 3]]


class MLP(torch.nn.Module):
    def __init__(self, d_hid):
        super().__init__()
        self.net1 = torch.nn.Linear(d_hid, d_hid)
        self.relu = torch.nn.ReLU()
        self.net2 = torch.nn.Linear(d_hid, d_hid)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


class MultiMLP(torch.nn.Module):
    def __init__(self, d_hid, n_layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(MLP(d_hid) for _ in range(n_layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def stages_of(modules, num_stages, group, own_weights=False):
    """Stages by number, of a dict of their modules."""
    return [
        PipelineStage(
            module,
            index,
            num_stages,
            CPU,
            group=group,
            dw_builder=module.builder if own_weights else None,
        )
        for index, module in modules.items()
    ]


def placed(stage, *inputs):
    """What the stage's rank gives to step(): the inputs, where it has the first stage."""
    return inputs if stage.is_first else ()


class Reference:
    """A MultiMLP, a layer to each stage, and the same model unsplit."""

    def __init__(self, group, name, d_hid=16, batch=16, reduction="sum", placement=None, wrap=None):
        self.group = group
        self.placement = placement or PLACEMENTS.get(name, LOOP)
        rank = group.get_local_rank() if isinstance(group, DeviceMesh) else dist.get_rank(group)
        self.here = self.placement[rank]
        self.num_stages = sum(map(len, self.placement))
        self.is_first = 0 in self.here
        self.is_last = self.num_stages - 1 in self.here
        self.d_hid, self.batch = d_hid, batch
        torch.manual_seed(0)
        self.plain = MultiMLP(d_hid, self.num_stages)
        self.mine = copy.deepcopy(self.plain)
        self.modules = {index: self.mine.layers[index] for index in self.here}
        if wrap is not None:
            self.modules = {index: wrap(module) for index, module in self.modules.items()}
        self.loss = torch.nn.MSELoss(reduction=reduction)

    def stages(self):
        return stages_of(self.modules, self.num_stages, self.group)

    def schedule(self, kind, n_microbatches, **options):
        stages = self.stages()
        given = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
        return kind(given, n_microbatches, loss_fn=self.loss, **options)

    def data(self, seed, batch=None):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, batch or self.batch, self.d_hid, generator=generator).unbind()

    def inputs(self, x):
        return (x,) if self.is_first else ()

    def call(self, function, x, y, losses):
        ends = {"target": y, "losses": losses} if self.is_last else {}
        return function(*self.inputs(x), **ends)

    def step(self, schedule, x, y):
        losses = []
        return self.call(schedule.step, x, y, losses), losses

    def plain_step(self, x, y):
        output = self.plain(x)
        loss = self.loss(output, y)
        loss.backward()
        return output.detach(), loss.detach()

    def parameters(self):
        """Pairs: of this rank's stages, and of the unsplit model."""
        for index in self.here:
            yield from zip(
                self.mine.layers[index].parameters(),
                self.plain.layers[index].parameters(),
                strict=True,
            )

    def drop_gradients(self):
        self.mine.zero_grad()
        self.plain.zero_grad()

    def compare_gradients(self):
        for mine, plain in self.parameters():
            torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-5, atol=4e-5)


def compare(reference, schedule, batch=None, seed=0):
    """One step of both: outputs, losses and every gradient."""
    reference.drop_gradients()
    x, y = reference.data(seed, batch)
    output, losses = reference.step(schedule, x, y)
    plain_output, plain_loss = reference.plain_step(x, y)
    if reference.is_last:
        torch.testing.assert_close(output, plain_output)
        assert len(losses) == schedule._n_microbatches
        if reference.loss.reduction == "sum":
            torch.testing.assert_close(sum(losses), plain_loss)
    else:
        assert output is None and losses == []
    reference.compare_gradients()
