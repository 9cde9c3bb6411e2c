"""Models that tests trace and split, and a rank's stages of one beside the whole."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from penstock.pipelining import pipe_split
from penstock.pipelining.schedules import get_schedule_class

torch.set_num_threads(1)  # Cores are for ranks, and tests run side by side.


class MLPModule(nn.Module):
    """A block of the reference workload."""

    def __init__(self, width):
        super().__init__()
        self.net1 = nn.Linear(width, width)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(width, width)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


class MultiMLP(nn.Module):
    """The reference workload; with `split`, pipe_split() between its blocks."""

    def __init__(self, width=16, n_layers=4, split=False):
        super().__init__()
        self.layers = nn.ModuleList([MLPModule(width) for _ in range(n_layers)])
        self.split = split

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if self.split and number > 0:
                pipe_split()
            x = layer(x)
        return x


class ExampleCode(nn.Module):
    """Parameters used twice, a buffer, a skip over a stage, keyword tensors."""

    def __init__(self, width=16):
        super().__init__()
        self.mm_param0 = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.mm_param1 = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.register_buffer("cval", torch.randn(width))
        self.register_buffer("scratch", torch.randn(width), persistent=False)
        self.lin0 = nn.Linear(width, width)
        self.lin1 = nn.Linear(width, width)

    def forward(self, x, y=None, *, scale=1.0):
        x = torch.mm(x, self.mm_param0)
        skip = torch.relu(x)
        x = skip + self.cval + (y if y is not None else 0)
        pipe_split()
        x = self.lin0(x)
        pipe_split()
        x = torch.mm(torch.relu(x), self.mm_param0) + self.scratch
        if y is not None:
            x = x * y
        pipe_split()
        x = self.lin1(x) * scale
        return torch.mm(x, self.mm_param1) + skip


CPU = torch.device("cpu")
# By rank, its stages.
PLACEMENTS = {
    "1F1B": [[0], [1]],
    "Interleaved1F1B": [[0, 2], [1, 3]],
    "InterleavedZeroBubble": [[0, 2], [1, 3]],
    "ZBVZeroBubble": [[0, 3], [1, 2]],
}


class Traced:
    """This rank's stages of a model in a schedule, beside the whole model."""

    def __init__(self, group, name, pipe, model, loss_fn, n_microbatches=4):
        self.model, self.loss_fn, self.count = copy.deepcopy(model), loss_fn, n_microbatches
        self.mine = PLACEMENTS[name][dist.get_rank(group)]
        self.has_first, self.has_last = 0 in self.mine, pipe.num_stages - 1 in self.mine
        stages = [pipe.build_stage(index, CPU, group) for index in self.mine]
        self.modules = [pipe.get_stage_module(index) for index in self.mine]
        self.schedule = get_schedule_class(name)(
            stages[0] if name == "1F1B" else stages, n_microbatches, loss_fn=loss_fn
        )
        own = {each for module in self.modules for each in module.parameters()}
        self.optimizers = [
            torch.optim.AdamW(parameters, lr=0.01) for parameters in (own, self.model.parameters())
        ]

    def check_step(self, args, kwargs, target):
        losses = []
        given = {"target": target, "losses": losses} if self.has_last else {}
        if self.has_first:
            self.schedule.step(*args, **kwargs, **given)
        else:
            self.schedule.step(**given)
        loss = self.loss_fn(self.model(*args, **kwargs), target)
        loss.backward()
        for module in self.modules:
            for name, parameter in module.named_parameters():
                expected = self.model.get_parameter(name).grad
                torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=4e-5)
        if self.has_last:
            total = torch.stack(losses).sum()
            is_mean = getattr(self.loss_fn, "reduction", "mean") == "mean"
            torch.testing.assert_close(total / (self.count if is_mean else 1), loss.detach())
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
