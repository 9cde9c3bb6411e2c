"""Pipelines as scripts for DeepSpeed use them, on 2 stages x 2 replicas."""

from __future__ import annotations

import functools

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import penstock
from penstock.errors import CommError, ConfigError
from penstock.pipe import DualPipeVModule, LayerSpec, PipelineModule, PipelineParallelGrid
from penstock.pipe.topology import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
)

WORLD_SIZE = 4
WIDTH = 4


def _sum_of_ranks(group):
    """Over a process group: proves that it carries messages, and between whom."""
    value = torch.tensor([2.0 ** dist.get_rank()])
    dist.all_reduce(value, group=group)
    return [rank for rank in range(WORLD_SIZE) if int(value) >> rank & 1]


def check_a_grid_of_stages_and_replicas(group):
    grid = PipelineParallelGrid(PipeDataParallelTopology(num_pp=2, num_dp=2), group)
    rank = dist.get_rank()
    stage, replica = divmod(rank, 2)
    assert (grid.get_stage_id(), grid.get_data_parallel_id()) == (stage, replica)
    assert (grid.get_pipe_parallel_rank(), grid.get_data_parallel_rank()) == (stage, replica)
    assert grid.get_pipe_parallel_world_size() == grid.get_data_parallel_world_size() == 2
    assert (grid.is_first_stage, grid.is_last_stage) == (stage == 0, stage == 1)
    assert _sum_of_ranks(grid.get_pipe_parallel_group()) == grid.pp_group == [replica, 2 + replica]
    same = [2 * stage, 2 * stage + 1]
    assert _sum_of_ranks(grid.get_data_parallel_group()) == grid.dp_group == same
    assert _sum_of_ranks(grid.get_model_parallel_group()) == grid.pp_group
    assert (grid.get_model_parallel_rank(), grid.get_model_parallel_world_size()) == (stage, 2)
    assert _sum_of_ranks(grid.get_slice_parallel_group()) == grid.slice_group == [rank]
    assert (grid.get_slice_parallel_rank(), grid.get_slice_parallel_world_size()) == (0, 1)
    assert [grid.stage_to_global(each) for each in range(2)] == [replica, 2 + replica]
    assert grid.stage_to_global(1, data=0) == 2
    assert grid.p2p_groups == [[0, 2], [1, 3], [2, 0], [3, 1]]
    assert grid.dp_groups == [[0, 1], [2, 3]]


def check_a_grid_with_shards_of_layers(group):
    del group
    grid = PipelineParallelGrid(PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=1))
    rank = dist.get_rank()
    stage, shard = divmod(rank, 2)
    assert _sum_of_ranks(grid.get_slice_parallel_group()) == [2 * stage, 2 * stage + 1]
    assert (grid.get_slice_parallel_rank(), grid.get_slice_parallel_world_size()) == (shard, 2)
    assert _sum_of_ranks(grid.get_model_parallel_group()) == [0, 1, 2, 3]
    assert (grid.get_model_parallel_rank(), grid.get_model_parallel_world_size()) == (rank, 4)
    assert _sum_of_ranks(grid.get_data_parallel_group()) == [rank]
    assert grid.stage_to_global(1) == 2 + shard
    assert grid.stage_to_global(0, model=1) == 1


def check_a_grid_has_a_group_for_every_axis(group):
    del group
    grid = PipelineParallelGrid(ProcessTopology(axes=["row", "pipe"], dims=[2, 2]))
    rank = dist.get_rank()
    assert _sum_of_ranks(grid.axis_groups["row"]) == [rank % 2, rank % 2 + 2]
    assert _sum_of_ranks(grid.axis_groups["pipe"]) == grid.pp_group == [rank // 2 * 2, rank | 1]
    assert grid.dp_group == [rank]


def check_a_grid_of_no_topology(group):
    """Prime factors of the ranks by turns: 4 is 2 stages of 2 replicas."""
    del group
    grid = PipelineParallelGrid()
    assert str(grid.topology()) == "pipe(2) x data(2)"


def check_ranks_that_differ_in_their_grids_are_told(group):
    del group
    stages = 1 if dist.get_rank() == 3 else 2
    with pytest.raises(CommError, match=r"rank 0 has topology=pipe\(2\)"):
        PipelineParallelGrid(PipeDataParallelTopology(num_pp=stages, num_dp=4 // stages))


def check_a_grid_for_other_ranks_is_refused_on_all(group):
    del group
    stages = 3 if dist.get_rank() == 1 else 2
    kind = ConfigError if stages == 3 else CommError
    with pytest.raises(kind, match="is for 6 ranks, and there are 4"):
        PipelineParallelGrid(PipeDataParallelTopology(num_pp=stages, num_dp=2))


class Noisy(torch.nn.Module):
    """Draws when it is made, and in each forward."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.nn.functional.dropout(self.linear(x).tanh(), 0.3, self.training)


def _engine(layers=4, later=0, **options):
    module = PipelineModule(
        [LayerSpec(Noisy) for _ in range(layers)],
        **{"num_stages": 2, "loss_fn": torch.nn.functional.mse_loss, **options},
    )
    if later:
        module.set_checkpoint_interval(later)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    engine, *_ = penstock.initialize(model=module, config=config)
    return engine


def _batches(count, seed=0, samples=2):
    generator = torch.Generator().manual_seed(seed + 100 * (dist.get_rank() % 2))
    for _ in range(count):
        yield tuple(torch.randn(2, samples, WIDTH, generator=generator).unbind())


def check_what_train_batch_returns(group):
    """A tensor of no dimensions, the same on all ranks: the mean loss."""
    del group
    torch.manual_seed(0)
    engine = _engine()
    loss = engine.train_batch(iter(_batches(4)))
    assert isinstance(loss, torch.Tensor) and loss.shape == () and not loss.requires_grad
    everyones = [None] * WORLD_SIZE
    dist.all_gather_object(everyones, loss.item())
    assert everyones == [loss.item()] * WORLD_SIZE
    assert engine.is_first_stage() == (engine.stage_id == 0)
    assert engine.is_last_stage() == (engine.stage_id == 1)
    engine.set_dataiterator(_batches(8))
    engine.train_batch()
    engine.train_batch()
    assert engine.global_steps == 3
    engine.reset_activation_shape()
    engine.destroy()


def check_an_evaluation_of_any_number_of_microbatches(group):
    del group
    torch.manual_seed(0)
    engine = _engine()
    one = engine.eval_batch(_batches(1), num_micro_batches=1)
    three = engine.eval_batch(_batches(3), num_micro_batches=3)
    assert one.item() != three.item()
    means = [engine.eval_batch(iter([each]), num_micro_batches=1) for each in _batches(3)]
    torch.testing.assert_close(three, sum(means) / 3)


def check_shapes_that_change(group):
    del group
    torch.manual_seed(0)
    engine = _engine(dynamic_shape=True)
    for samples in (2, 5, 1):
        assert engine.train_batch(_batches(4, samples=samples)).isfinite()


def check_seeds_of_layers_are_those_of_their_indices(group):
    """Made of base_seed + index; each forward of base_seed * (its number + 1) + index."""
    del group
    seeds = []

    def seed_fn(seed):
        seeds.append(seed)
        torch.manual_seed(seed)

    engine = _engine(seed_layers=True, seed_fn=seed_fn, base_seed=50)
    first = 2 * engine.stage_id
    assert seeds == [50 + first, 51 + first]
    torch.manual_seed(50 + first)
    assert torch.equal(Noisy().linear.weight, engine.module.get_parameter(f"{first}.linear.weight"))
    seeds.clear()
    engine.train_batch(_batches(4))
    assert seeds == [50 * (i + 1) + layer for i in range(4) for layer in (first, first + 1)]


def check_checkpointed_activations_change_nothing(group):
    """Of any interval, and computed again by torch's either way: the same bits."""
    del group
    losses = []
    for options in (
        {},
        {"activation_checkpoint_interval": 1},
        {"activation_checkpoint_interval": 2},
        {"later": 1},
        {
            "activation_checkpoint_interval": 1,
            "activation_checkpoint_func": functools.partial(checkpoint, use_reentrant=True),
        },
    ):
        torch.manual_seed(0)
        engine = _engine(seed_layers=True, **options)
        losses.append([engine.train_batch(_batches(4, seed)).item() for seed in range(3)])
    assert losses == [losses[0]] * 5


def check_methods_of_partition(group):
    del group
    for method, parts in [
        ("uniform", [0, 3, 5]),
        ("PARAMETERS", [0, 2, 5]),
        ("type:noisy", [0, 2, 5]),
        ([0, 1, 5], [0, 1, 5]),
    ]:
        assert _engine(5, partition_method=method).module.parts == parts
    with pytest.raises(ConfigError, match='must be "uniform", "parameters", "type:REGEX"'):
        _engine(partition_method="best")


def check_an_engine_has_what_its_module_has(group):
    del group
    engine = _engine()
    engine.module.own = "mine"
    assert engine.own == "mine"
    assert [id(each) for each in engine.parameters()] == [*map(id, engine.module.parameters())]
    assert dict(engine.named_parameters()).keys() == engine.state_dict().keys()
    engine.eval()
    assert not engine.module.training and not engine.training
    for name in ("load_state_dict", "half", "_modules", "zero_grad", "grid", "absent"):
        with pytest.raises(AttributeError, match=name):
            getattr(engine, name)


def check_two_stages_of_a_rank_have_the_losses_of_one(group):
    """DualPipeVModule: this rank's layers are the outer or the inner ones."""
    del group
    losses = []
    for kind in (PipelineModule, DualPipeVModule):
        torch.manual_seed(0)
        layers = [LayerSpec(torch.nn.Linear, WIDTH, WIDTH) for _ in range(4)]
        module = kind(
            layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform"
        )
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        }
        engine = penstock.initialize(model=module, config=config)[0]
        engine.empty_partition_cache()
        losses.append([engine.train_batch(_batches(4, seed)).item() for seed in range(3)])
    held = {name.split(".")[0] for name, _ in module.named_parameters()}
    assert held == ({"0", "3"} if engine.stage_id == 0 else {"1", "2"})
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
