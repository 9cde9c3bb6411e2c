"""What models and scripts for DeepSpeed do with parameters of ZeRO 3, on two ranks."""

import ranks
import torch

import penstock
from penstock.zero.partition_parameters import ZeroParamStatus

WORLD_SIZE = 2
AVAILABLE, AWAY = ZeroParamStatus.AVAILABLE, ZeroParamStatus.NOT_AVAILABLE


def start(model, threshold=0, **options):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": threshold,
            "reduce_bucket_size": 4,  # What comes and goes together: one parameter.
        },
        **options,
    }
    return penstock.initialize(model=model, config=config)[0]


def linears():
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))


def statuses(module):
    return [each.ds_status for each in module.parameters()]


def check_small_parameters_stay(group):
    assert statuses(start(linears())) == [AWAY] * 4
    engine = start(linears(), threshold=5)
    assert statuses(engine) == [AWAY, AVAILABLE] * 2
    assert [each.ds_persist for each in engine.parameters()] == [False, True] * 2
    default = {"zero_optimization": {"stage": 3}}
    assert statuses(start(linears(), **default)) == [AVAILABLE] * 4  # Up to 100000 elements.


def check_a_parameter_is_gathered_and_partitioned(group):
    engine = start(linears())
    first, last = engine.module[0].weight, engine.module[1].weight
    first.all_gather()
    assert (first.ds_status, last.ds_status) == (AVAILABLE, AWAY)
    assert torch.equal(first, linears()[0].weight)
    first.all_gather()  # It is there.
    first.partition()
    assert first.ds_status == AWAY
    first.partition()  # It is away.
    first.all_gather_coalesced([first, last])
    assert statuses(engine) == [AVAILABLE, AWAY] * 2
    with torch.no_grad():
        first.fill_(group.rank() + 2)
    first.partition([first, last], has_been_updated=True)
    assert statuses(engine) == [AWAY] * 4
    with penstock.zero.GatheredParameters(first):
        assert torch.equal(first, torch.full((5, 6), 2.0))  # As rank 0 has set it.


def check_generation_brings_nothing(group):
    engine = start(linears())
    with penstock.zero.unwrap_model_for_generation(engine) as model, torch.no_grad():
        assert statuses(model) == [AVAILABLE] * 4
        if group.rank() == 0:  # Not all ranks need to run it.
            found = model.module(torch.ones(2, 6))
            assert torch.equal(found, linears()(torch.ones(2, 6)))
    assert statuses(engine) == [AWAY] * 4


def check_tiles_come_one_by_one(group):
    torch.manual_seed(4)
    with penstock.zero.Init():
        tiled = penstock.zero.TiledLinear(8, 6, in_splits=2, out_splits=3)
    engine = start(tiled)
    loss = engine(torch.ones(2, 8)).square().mean()
    engine.backward(loss)
    engine.step()
    assert engine(torch.ones(2, 8)).square().mean() < loss


def check_classes_that_are_declared_inside_init(group):
    with penstock.zero.Init():

        class Late(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.full((4,), 3.0))

        module = Late()
        assert module.weight.ds_status == AWAY
        with penstock.zero.Init():  # One in the other.
            inner = torch.nn.Linear(2, 2)
        assert statuses(inner) == [AWAY] * 2
    outside = Late()
    assert not hasattr(outside.weight, "ds_id")


def check_short_types_that_init_is_asked_for(group):
    with penstock.zero.Init(dtype=torch.bfloat16):
        assert torch.nn.Linear(2, 2).weight.dtype is torch.bfloat16
    for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.half)):
        config = {"train_batch_size": 2, key: {"enabled": True}}
        with penstock.zero.Init(config_dict_or_path=config):
            assert torch.nn.Linear(2, 2).weight.dtype is dtype
    with penstock.zero.Init(enabled=False):
        assert not hasattr(torch.nn.Linear(2, 2).weight, "ds_id")


def check_a_module_that_exists_is_spread(group):
    module = linears()
    penstock.zero.Init(module=module)
    assert statuses(module) == [AWAY] * 4
    engine = start(module)
    assert torch.equal(engine.module_state_dict()["0.weight"], linears()[0].weight)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
