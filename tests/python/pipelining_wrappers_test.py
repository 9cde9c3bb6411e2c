"""Stages whose modules are wrapped: two pipelines of two ranks, side by side.

DistributedDataParallel, fully_shard, torch.compile, checkpointed activations, autocast; each with
whole and with split backwards.  Gradients are those of the unsplit model on the whole batch.
"""

from __future__ import annotations

import warnings

import ranks
import torch
import torch.distributed as dist
from models import MLP, Reference, stages_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from penstock.pipelining import schedules
from penstock.pipelining.schedules import Schedule1F1B, ScheduleZBVZeroBubble

WORLD_SIZE = 4
KINDS = ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def _mesh():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))


def _replicas_agree(mesh, wrap, gradient_of, kinds=KINDS):
    """Each replica has half of the batch; gradients are the mean of theirs."""
    for name in kinds:
        reference = Reference(mesh["pp"], name, batch=16, wrap=wrap)
        schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
        for seed in range(2):  # Two steps before an update.
            x, y = reference.data(seed)
            mine = slice(0, 8) if mesh["dp"].get_local_rank() == 0 else slice(8, 16)
            reference.step(schedule, x[mine], y[mine])
            reference.plain_step(x, y)
        for mine, plain in reference.parameters():
            torch.testing.assert_close(gradient_of(mine), plain.grad / 2, rtol=1e-5, atol=4e-5)


def check_replicas_of_ddp(group):
    del group
    mesh = _mesh()
    data_group = mesh["dp"].get_group()
    _replicas_agree(
        mesh,
        lambda module: DistributedDataParallel(module, process_group=data_group),
        lambda parameter: parameter.grad,
    )


def check_shards_of_fully_shard(group):
    del group
    mesh = _mesh()

    def wrap(module):
        fully_shard(module.net1, mesh=mesh["dp"])
        return fully_shard(module, mesh=mesh["dp"])

    _replicas_agree(mesh, wrap, lambda parameter: parameter.grad.full_tensor())


def check_compiled_stages(group):
    del group
    mesh = _mesh()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        for name in ["1F1B", "ZBVZeroBubble"]:
            reference = Reference(
                mesh["pp"], name, wrap=lambda module: torch.compile(module, backend="aot_eager")
            )
            schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
            for _ in range(2):
                x, y = reference.data(0)
                reference.drop_gradients()
                reference.step(schedule, x, y)
                reference.plain_step(x, y)
                reference.compare_gradients()
    texts = [str(note.message) for note in notes if "penstock" in str(note.filename)]
    assert len(texts) == 2 and all("compiled graph cannot be split" in each for each in texts)


class Checkpointed(torch.nn.Module):
    def __init__(self, module, use_reentrant):
        super().__init__()
        self.module = module
        self.use_reentrant = use_reentrant
        self.forwards = 0

    def run(self, x):
        self.forwards += 1
        return self.module(x)

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=self.use_reentrant)


def check_checkpointed_activations_are_recomputed_once(group):
    del group
    mesh = _mesh()
    for name in ["1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]:
        reference = Reference(
            mesh["pp"], name, wrap=lambda module: Checkpointed(module, use_reentrant=False)
        )
        schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
        x, y = reference.data(0)
        reference.step(schedule, x, y)
        reference.plain_step(x, y)
        reference.compare_gradients()
        counts = [module.forwards for module in reference.modules.values()]
        assert counts == [8] * len(counts), (name, counts)


def check_reentrant_checkpoints(group):
    """In a stage whose input takes no gradient they train nothing, and nobody else notices."""
    del group
    mesh = _mesh()
    rank = mesh["pp"].get_local_rank()
    torch.manual_seed(rank)
    module = MLP(8) if rank == 0 else Checkpointed(MLP(8), use_reentrant=True)
    (stage,) = stages_of({rank: module}, 2, mesh["pp"])
    schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.MSELoss())
    x = torch.randn(4, 8)
    schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == 1 else {}))
    assert all(each.grad is not None for each in module.parameters())
    assert rank == 0 or module.forwards == 4


def check_autocast(group):
    del group
    mesh = _mesh()
    for name in ["1F1B", "ZBVZeroBubble"]:
        reference = Reference(mesh["pp"], name)
        schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
        x, y = reference.data(0)
        reference.step(schedule, x, y)
        reference.drop_gradients()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = reference.step(schedule, x, y)
            plain = reference.plain(x)
            loss = reference.loss(plain, y)
        loss.backward()
        if reference.is_last:
            assert output.dtype == torch.bfloat16
            torch.testing.assert_close(output, plain.detach(), rtol=0.02, atol=0.02)
        for mine, of_plain in reference.parameters():
            assert mine.grad.dtype == torch.float32
            # bfloat16 has 8 bits: each microbatch's products are rounded on their own.
            close = torch.nn.functional.cosine_similarity(
                mine.grad.flatten(), of_plain.grad.flatten(), dim=0
            )
            assert close > 0.999


def check_a_group_of_some_ranks(group):
    """Ranks 3 and 1, in this order of stages, while 0 and 2 do nothing."""
    del group
    pair = dist.new_group([1, 3], timeout=ranks.GROUP_TIMEOUT)
    if dist.get_rank() not in (1, 3):
        return
    reference = Reference(pair, "1F1B")
    schedule = reference.schedule(Schedule1F1B, n_microbatches=4)
    x, y = reference.data(0)
    reference.step(schedule, x, y)
    reference.plain_step(x, y)
    reference.compare_gradients()


def check_four_ranks_in_one_pipeline(group):
    placement = [[0, 7], [1, 6], [2, 5], [3, 4]]
    reference = Reference(group, "zbv", placement=placement)
    schedule = reference.schedule(ScheduleZBVZeroBubble, n_microbatches=8)
    x, y = reference.data(0)
    reference.step(schedule, x, y)
    reference.plain_step(x, y)
    reference.compare_gradients()


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
