"""Blocks that are parallel, compiled or checkpointed inside, as stages of schedules.

Training is some schedule over them, and the same blocks whole in one process.  The values are of
magnitude 1 and of 32 bits; sums in another order differ by some 1e-7.
"""

from __future__ import annotations

import copy
import itertools

import ranks
import torch
import torch.distributed as dist
from models import CPU, LOOP, PLACEMENTS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from penstock import pipelining

WIDTH, HIDDEN, BATCH, MICROBATCHES, STEPS = 8, 16, 16, 4, 5
BOUND = 1e-6
TWICE = (2, 1, 2)  # The same pipeline of two ranks twice, side by side.
# The first one is the quick tier's.
SCHEDULES = [
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "DualPipeV",
]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Checkpointed(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def plain(block, mesh):
    return block


def ddp(block, mesh):
    return DistributedDataParallel(block, process_group=mesh["dp"].get_group())


def sharded(block, mesh):
    fully_shard(block.up, mesh=mesh["dp"])
    return fully_shard(block, mesh=mesh["dp"])


def tensor_parallel(block, mesh):
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(block, mesh["tp"], plan)


def both(block, mesh):
    return sharded(tensor_parallel(block, mesh), mesh)


def compiled(block, mesh):
    return torch.compile(block, backend="aot_eager")


def checkpointed(block, mesh):
    return Checkpointed(block)


def all_together(block, mesh, backend="aot_eager"):
    """In torchtitan's order: tensor parallel, checkpointed, compiled, sharded."""
    if mesh["tp"].size() > 1:
        block = tensor_parallel(block, mesh)
    block = torch.compile(Checkpointed(block), backend=backend)
    return fully_shard(block, mesh=mesh["dp"])


def _placement(name, ranks_of_pipe):
    """Which stages each rank has; alone, a rank has all that a schedule of one rank may have."""
    if ranks_of_pipe == 2:
        return PLACEMENTS.get(name, LOOP)
    return [[0]] if name in ("GPipe", "1F1B") else [[0, 1]]


class Training:
    """Some schedule over wrapped blocks, and the same blocks whole, each with its optimizer."""

    def __init__(self, name, wrap, shape, of=pipelining):
        """shape: of the mesh: ranks of a pipeline, replicas, ranks of a layer.

        of: penstock.pipelining, or torch.distributed.pipelining.
        """
        self.mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "tp"))
        kind = of.schedules.get_schedule_class(name)
        is_single = not issubclass(kind, of.schedules.PipelineScheduleMulti)
        placement = _placement(name, shape[0])
        here = placement[self.mesh["pp"].get_local_rank()]
        count = sum(map(len, placement))
        self.is_first, self.is_last = 0 in here, count - 1 in here
        torch.manual_seed(0)
        self.plain = torch.nn.Sequential(*(Block() for _ in range(count)))
        self.blocks = {index: copy.deepcopy(self.plain[index]) for index in here}
        modules = {index: wrap(block, self.mesh) for index, block in self.blocks.items()}
        stages = [
            of.PipelineStage(module, index, count, CPU, group=self.mesh["pp"].get_group())
            for index, module in modules.items()
        ]
        self.loss_fn = torch.nn.MSELoss()
        self.schedule = kind(stages[0] if is_single else stages, MICROBATCHES, self.loss_fn)
        of_blocks = [each for block in self.blocks.values() for each in block.parameters()]
        self.optimizer = torch.optim.SGD(of_blocks, lr=0.2, momentum=0.9)
        self.of_plain = torch.optim.SGD(self.plain.parameters(), lr=0.2, momentum=0.9)

    def step(self, x, y):
        """Of both; the losses, this rank's and the whole model's, on ranks of the last stage."""
        replicas, replica = self.mesh["dp"].size(), self.mesh["dp"].get_local_rank()
        mine = slice(replica * BATCH // replicas, (replica + 1) * BATCH // replicas)
        losses = []
        ends = {"target": y[mine], "losses": losses} if self.is_last else {}
        self.schedule.step(*([x[mine]] if self.is_first else []), **ends)
        self.of_plain.zero_grad()
        loss = self.loss_fn(self.plain(x), y)
        loss.backward()
        if not self.is_last:
            return None
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean, group=self.mesh["dp"].get_group())
        return mean / replicas, loss.detach()

    def compare(self, of):
        for index, block in self.blocks.items():
            expected = dict(self.plain[index].named_parameters())
            for name, each in block.named_parameters():
                difference_of = difference(whole(of(each)), of(expected[name]))
                assert difference_of <= BOUND, (index, name, difference_of)


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def difference(mine, expected):
    return (mine.detach() - expected.detach()).abs().max().item()


def trains_as_the_unsplit_model(wrap, shapes, names=SCHEDULES):
    """In every schedule; the quick tier has one of them, on the first shape."""
    for name, shape in ranks.cases(itertools.product(names, shapes), quick=1):
        training = Training(name, wrap, shape)
        generator = torch.Generator().manual_seed(1)
        for step in range(STEPS):
            x, y = torch.randn(2, BATCH, WIDTH, generator=generator).unbind()
            losses = training.step(x, y)
            where = (name, shape, step)
            assert losses is None or difference(*losses) <= BOUND, where
            training.compare(lambda each: each.grad)
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.of_plain.step()
            training.compare(lambda each: each)
