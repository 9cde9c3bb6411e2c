"""Stages that are tensor-parallel inside: what they hand on, and what they end with.

Two stages of two ranks each.  Losses and gradients are those of the unsplit model, which computes
on one rank.
"""

from __future__ import annotations

import contextlib
import copy
import itertools

import pytest
import ranks
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from penstock.errors import CommError, Error
from penstock.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

WORLD_SIZE = 4
CPU = torch.device("cpu")
CLASSES = 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(CLASSES, 16)
        self.down = torch.nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Pipeline:
    """Blocks on a mesh of pipe(2) x tensor(2) ranks, and the same blocks whole."""

    def __init__(self, blocks, plans, asked=None):
        """asked: gets the arguments of each call of get_mesh; without, there is none."""
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        self.rank = self.mesh["pp"].get_local_rank()
        torch.manual_seed(0)
        self.plain = torch.nn.Sequential(*(Block() for _ in range(blocks)))
        self.here = list(range(self.rank, blocks, 2))
        self.blocks = {index: copy.deepcopy(self.plain[index]) for index in self.here}
        for index, block in self.blocks.items():
            parallelize_module(block, self.mesh["tp"], plans[index])

        def get_mesh(names, layout):
            asked.append((names, layout))
            return self.mesh["tp"]

        more = {} if asked is None else {"get_mesh": get_mesh}
        self.stages = [
            PipelineStage(block, index, blocks, CPU, group=self.mesh["pp"], **more)
            for index, block in self.blocks.items()
        ]
        self.x, self.y = torch.randn(8, CLASSES), torch.randint(0, CLASSES, (8,))
        self.loss_fn = torch.nn.functional.cross_entropy

    def step(self, kind=Schedule1F1B, loss_fn=None):
        """The output and the losses of a step, on the ranks of the last stage."""
        stages = self.stages if len(self.stages) > 1 else self.stages[0]
        schedule = kind(stages, n_microbatches=4, loss_fn=loss_fn or self.loss_fn)
        losses = []
        ends = {"target": self.y, "losses": losses} if self.rank == 1 else {}
        output = schedule.step(*([self.x] if self.rank == 0 else []), **ends)
        return output, losses

    def compare(self, output, losses):
        plain = self.plain(self.x)
        loss = self.loss_fn(plain, self.y)
        loss.backward()
        for index, block in self.blocks.items():
            for name, parameter in block.named_parameters():
                whole = parameter.grad
                whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
                expected = self.plain[index].get_parameter(name).grad
                torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-6)
        if self.rank == 1:
            whole = output.full_tensor() if isinstance(output, DTensor) else output
            torch.testing.assert_close(whole, plain.detach())
            mean = torch.stack([each.detach() for each in losses]).mean()
            mean = mean.full_tensor() if isinstance(mean, DTensor) else mean
            torch.testing.assert_close(mean, loss.detach())


PLAIN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def check_results_that_a_collective_still_fills(group):
    """RowwiseParallel's defaults leave one at the end of a stage."""
    del group
    for kind in (Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble):
        blocks = 2 if kind is Schedule1F1B else 4
        pipeline = Pipeline(blocks, [PLAIN] * blocks)
        pipeline.compare(*pipeline.step(kind))


def check_dtensors_between_stages(group):
    """Of each placement; get_mesh is asked by the names of the mesh's dimensions."""
    del group
    for placement, kind in itertools.product(
        (Shard(0), Shard(1), Replicate(), Partial()), (Schedule1F1B, ScheduleInterleavedZeroBubble)
    ):
        blocks = 2 if kind is Schedule1F1B else 4
        asked = []
        hands_on = {
            "up": ColwiseParallel(input_layouts=placement),
            "down": RowwiseParallel(output_layouts=placement, use_local_output=False),
        }
        first = {**hands_on, "up": ColwiseParallel()}
        last = {**hands_on, "down": RowwiseParallel()}
        pipeline = Pipeline(blocks, [first, *[hands_on] * (blocks - 2), last], asked)
        pipeline.compare(*pipeline.step(kind))
        if pipeline.rank == 1:
            layout = getattr(pipeline.mesh["tp"], "_layout", None)
            assert set(asked) == {(("tp",), layout if hasattr(layout, "axes") else None)}


def check_a_dtensor_without_a_mesh_is_refused(group):
    del group
    hands_on = {"up": ColwiseParallel(), "down": RowwiseParallel(use_local_output=False)}
    pipeline = Pipeline(2, [hands_on, PLAIN])
    with pytest.raises(Error if pipeline.rank == 1 else CommError) as caught:
        pipeline.step()
    assert "stage 0 handed on a DTensor" in str(caught.value)
    assert "get_mesh" in str(caught.value)


def check_loss_parallel(group):
    """Logits stay sharded, and the losses are DTensors, as they are there."""
    del group
    last = {
        "up": RowwiseParallel(input_layouts=Replicate()),
        "down": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    pipeline = Pipeline(2, [PLAIN, last])
    with loss_parallel():
        output, losses = pipeline.step()
    pipeline.compare(output, losses)
    if pipeline.rank == 1:
        assert isinstance(output, DTensor) and output.placements == (Shard(1),)
        assert all(isinstance(each, DTensor) and each.dim() == 0 for each in losses)


def check_an_output_that_is_a_dtensor(group):
    """The loss takes it apart itself."""
    del group
    last = {
        "up": RowwiseParallel(input_layouts=Replicate()),
        "down": ColwiseParallel(output_layouts=Replicate(), use_local_output=False),
    }
    pipeline = Pipeline(2, [PLAIN, last])
    output, losses = pipeline.step(
        loss_fn=lambda output, target: pipeline.loss_fn(output.full_tensor(), target)
    )
    pipeline.compare(output, losses)
    if pipeline.rank == 1:
        assert isinstance(output, DTensor) and output.placements == (Replicate(),)
        assert type(losses[0]) is torch.Tensor


class Around(torch.Tensor):
    """A class of a user's own: other tensors inside, and no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


def check_what_has_no_memory_is_refused(group):
    """By name, on the rank that would send it and on the others: it used to be a crash."""
    del group
    cases = {
        "a Around": lambda x: Around(x.detach()),
        "layout torch.sparse_coo": lambda x: x.to_sparse(),
        "on the meta device": lambda x: x.to("meta"),
        "at place 1": lambda x: (x, Around(x.detach())),
    }

    class Ends(torch.nn.Module):
        def __init__(self, end):
            super().__init__()
            self.linear = torch.nn.Linear(CLASSES, CLASSES)
            self.end = end

        def forward(self, x):
            return self.end(self.linear(x))

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    rank = mesh["pp"].get_local_rank()
    for words, end in cases.items():
        stage = PipelineStage(Ends(end), rank, 2, CPU, group=mesh["pp"])
        schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.MSELoss())
        given = [torch.ones(4, CLASSES)] if rank == 0 else []
        target = {"target": torch.ones(4, CLASSES)} if rank == 1 else {}
        with pytest.raises(TypeError if rank == 0 else CommError) as caught:
            schedule.step(*given, **target)
        assert words in str(caught.value) and "no memory of its own" in str(caught.value)


def check_outputs_of_an_evaluation(group):
    """Without graphs, and with the placements that a step has."""
    del group
    pipeline = Pipeline(2, [PLAIN, PLAIN])
    schedule = Schedule1F1B(pipeline.stages[0], n_microbatches=4)
    with contextlib.nullcontext() if pipeline.rank else torch.no_grad():
        output = schedule.eval(*([pipeline.x] if pipeline.rank == 0 else []))
    if pipeline.rank == 1:
        assert type(output) is torch.Tensor
        torch.testing.assert_close(output, pipeline.plain(pipeline.x).detach())


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
