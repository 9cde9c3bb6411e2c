"""The models that the tests of the pipelining dialect split."""

import torch
from penstock.pipelining import pipe_split
from torch import nn

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
        self.mm_param0 = nn.Parameter(torch.randn(width, width))
        self.mm_param1 = nn.Parameter(torch.randn(width, width))
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
