"""Options of DistributedDataParallel around stages: two pipelines of two ranks, side by side.

Gradients are the mean over the replicas, with zeros of a replica that did not use a branch, over
steps that follow each other; what fits no program is refused by name before the first step.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from penstock import pipelining
from penstock.errors import Error
from penstock.pipelining.schedules import get_schedule_class

WORLD_SIZE, WIDTH, MICROBATCHES, STEPS = 4, 6, 4, 2
SCHEDULES = ["InterleavedZeroBubble", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"]


class Branches(torch.nn.Module):
    """Which branch runs depends on the data; `never` runs on no replica."""

    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.never = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.left(x) if x.sum() > 0 else self.right(x))


class Straight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH, affine=False, momentum=0.5)
        self.norm.eval()

    def forward(self, x):
        return torch.tanh(self.norm(self.mix(x)))


class Inside(torch.nn.Module):
    """Has its replicas deeper."""

    def __init__(self, wrapped):
        super().__init__()
        self.wrapped = wrapped

    def forward(self, x):
        return self.wrapped(x)


def ddp(mesh, **options):
    hook = options.pop("hook", None)

    def wrap(module):
        made = DistributedDataParallel(module, process_group=mesh["dp"].get_group(), **options)
        if hook is not None:
            made.register_comm_hook(mesh["dp"].get_group(), hook)
        return made

    return wrap


KINDS = {
    "find_unused_parameters": (Branches, {"find_unused_parameters": True}),
    "static_graph": (Straight, {"static_graph": True}),
    "plain": (Branches, {}),
    "views": (Branches, {"gradient_as_bucket_view": True}),
    "views of unused ones": (
        Branches,
        {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    ),
    "tiny buckets": (Straight, {"bucket_cap_mb": 0.00001, "static_graph": True}),
    "hook": (Branches, {"hook": allreduce_hook, "find_unused_parameters": True}),
    "no buffers": (Straight, {"broadcast_buffers": False}),
}


class Replicated:
    """Stages of this rank, and the whole model in one process."""

    def __init__(self, mesh, kind, name, wrap):
        self.mesh = mesh
        pipe = mesh["pp"]
        self.rank, self.replica = pipe.get_local_rank(), mesh["dp"].get_local_rank()
        count = 2 if name == "1F1B" else 4
        torch.manual_seed(3)
        self.plain = [kind() for _ in range(count)]
        mine = range(self.rank, count, 2)
        if name == "ZBVZeroBubble":
            mine = [self.rank, count - 1 - self.rank]
        self.modules = {i: wrap(copy.deepcopy(self.plain[i])) for i in mine}
        stages = [
            pipelining.PipelineStage(module, i, count, torch.device("cpu"), group=pipe.get_group())
            for i, module in self.modules.items()
        ]
        self.schedule = get_schedule_class(name)(
            stages[0] if count == 2 else stages, MICROBATCHES, loss_fn=torch.nn.MSELoss()
        )
        self.last = count - 1

    def step(self, seed):
        torch.manual_seed(seed)
        # The replicas take different branches.
        data = torch.randn(2, 8, WIDTH) * 0.1 + torch.tensor([1.0, -1.0]).view(2, 1, 1)
        goals = torch.randn(2, 8, WIDTH)
        more = {"target": goals[self.replica]} if self.last in self.modules else {}
        self.schedule.step(*([data[self.replica]] if 0 in self.modules else []), **more)
        for x, goal in zip(data, goals, strict=True):
            for some, wanted in zip(x.chunk(4), goal.chunk(4), strict=True):
                for each in self.plain:
                    some = each(some)
                (torch.nn.functional.mse_loss(some, wanted) / 4 / 2).backward()

    def pairs(self):
        for i, module in self.modules.items():
            inner = next(m for m in module.modules() if isinstance(m, type(self.plain[i])))
            yield from zip(inner.named_parameters(), self.plain[i].named_parameters(), strict=True)

    def check(self):
        for (name, mine), (_, plain) in self.pairs():
            assert (mine.grad is None) == (plain.grad is None), name
            if plain.grad is not None:
                torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-5, atol=1e-6)

    def drop_gradients(self):
        for (_, mine), (_, plain) in self.pairs():
            mine.grad = plain.grad = None


def check_gradients_are_means_over_replicas(group):
    del group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    for kind, options in KINDS.values():
        for name in ranks.cases(SCHEDULES, quick=1):
            replicated = Replicated(mesh, kind, name, ddp(mesh, **options))
            for seed in range(STEPS):
                replicated.step(seed)
                replicated.check()
                replicated.drop_gradients()


def check_wrappers_deeper_inside(group):
    del group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    wrap = ddp(mesh, find_unused_parameters=True)
    replicated = Replicated(mesh, Branches, "1F1B", lambda module: Inside(wrap(module)))
    for seed in range(STEPS):
        replicated.step(seed)
    replicated.check()


def check_steps_inside_no_sync_are_summed_with_the_next(group):
    del group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    for options in ({"find_unused_parameters": True}, {}, {"static_graph": True}):
        kind = Straight if options.get("static_graph") else Branches
        replicated = Replicated(mesh, kind, "1F1B", ddp(mesh, **options))
        (module,) = replicated.modules.values()
        for seed in range(4):
            with module.no_sync() if seed % 2 == 0 else nullcontext():
                replicated.step(seed)
            if seed % 2 == 1:
                replicated.check()
                replicated.drop_gradients()


def check_buffers_begin_each_step_as_on_the_first_replica(group):
    del group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    replicated = Replicated(mesh, Straight, "1F1B", ddp(mesh))
    (module,) = replicated.modules.values()
    count = module.module.norm.running_mean
    for seed in range(2):
        count.fill_(float(replicated.replica))
        replicated.step(seed)
        torch.testing.assert_close(count, torch.zeros(WIDTH))


def check_sparse_gradients(group):
    """Of an embedding, they stay sparse, as in DDP without a pipeline."""
    del group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    pipe, replica = mesh["pp"], mesh["dp"].get_local_rank()
    torch.manual_seed(5)
    plain = [torch.nn.Embedding(11, WIDTH, sparse=True), torch.nn.Linear(WIDTH, WIDTH)]
    rank = pipe.get_local_rank()
    module = ddp(mesh)(copy.deepcopy(plain[rank]))
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"), group=pipe.get_group())
    schedule = pipelining.Schedule1F1B(stage, 4, loss_fn=torch.nn.MSELoss())
    for _ in range(2):
        words, goals = torch.randint(0, 11, (2, 8)), torch.randn(2, 8, WIDTH)
        schedule.step(words[replica]) if rank == 0 else schedule.step(target=goals[replica])
        torch.nn.functional.mse_loss(
            plain[1](plain[0](words.flatten())), goals.flatten(0, 1)
        ).backward()
    mine, want = next(module.parameters()).grad, next(plain[rank].parameters()).grad
    assert mine.is_sparse == (rank == 0)
    torch.testing.assert_close(mine.to_dense(), want.to_dense(), rtol=1e-5, atol=1e-6)


def check_options_that_fit_no_program(group):
    del group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))

    def refused(change, words):
        replicated = Replicated(mesh, Straight, "1F1B", ddp(mesh))
        (module,) = replicated.modules.values()
        change(module)
        with pytest.raises(Error) as caught:  # Its own, or that of a neighbour.
            replicated.step(0)
        assert words in str(caught.value), caught.value

    def optimize_in_backward(module):
        for each in module.parameters():
            each._in_backward_optimizers = [torch.optim.SGD([each], 0.1)]

    refused(lambda module: setattr(module, "mixed_precision", object()), "mixed_precision")
    refused(optimize_in_backward, "_apply_optimizer_in_backward")
    refused(
        lambda module: setattr(module, "_join_config", module._join_config._replace(enable=True)),
        "is in join()",
    )
    dist.barrier()


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
