"""penstock.zero.Init: a model that is spread while it is made trains like one that is not."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import Mixed, config, initialize, mixed, same_state, train

import penstock
from penstock.zero import GatheredParameters, Init
from penstock.zero.partition_parameters import ZeroParamStatus


def _bytes_here(module):
    """Of the parameters' storages, each once."""
    with torch._C.DisableTorchFunctionSubclass():
        storages = [each.untyped_storage() for each in module.parameters()]
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def _spread(seed=0, **options):
    torch.manual_seed(seed)
    with Init(config_dict_or_path=config(3), **options):
        return Mixed()


def check_it_trains_as_without(group):
    expected, _ = initialize(mixed(), 0)
    losses = train(expected, 4)
    for stage in range(4):
        model = _spread(seed=dist.get_rank())
        engine, _ = initialize(model, stage)
        same_state(engine.module_state_dict(), mixed().state_dict())
        assert train(engine, 4) == losses
        same_state(engine.module_state_dict(), expected.module_state_dict())


def check_no_rank_ever_has_the_whole_model(group):
    seen = []

    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList()
            for _ in range(8):
                self.layers.append(torch.nn.Linear(32, 32))
                seen.append(_bytes_here(self))

    with Init():
        model = Deep()
    if group.size() > 1:
        assert seen == [0] * 8
        assert all(each.ds_status is ZeroParamStatus.NOT_AVAILABLE for each in model.parameters())
    initialize(model, 3)
    small = 8 * 4 * 32  # Biases stay, in pieces of multiples of 64 elements.
    assert _bytes_here(model) <= (4 * small if group.size() > 1 else 33 * small)


def check_values_may_be_set_while_it_is_made(group):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.apply(self.fill)
            with GatheredParameters(self.linear.bias, modifier_rank=0):
                torch.nn.init.constant_(self.linear.bias, 7.0 + dist.get_rank())

        def fill(self, module):
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.constant_(module.weight, 3.0 + dist.get_rank())

    with Init():

        class Derived(Own):  # Made inside: is watched, too.
            pass

        model = Derived()
    with GatheredParameters(model.parameters()):
        assert (model.linear.weight == 3.0).all() and (model.linear.bias == 7.0).all()


def check_classes_are_as_before_afterwards(group):
    before = (torch.nn.Linear.__init__, torch.nn.Module.apply, torch.nn.Module.__init__)
    with pytest.raises(KeyError), Init():
        assert torch.nn.Linear.__init__ is not before[0]
        raise KeyError
    assert before == (torch.nn.Linear.__init__, torch.nn.Module.apply, torch.nn.Module.__init__)
    assert "__init_subclass__" not in torch.nn.Module.__dict__
    assert type(torch.nn.Linear(1, 1).weight) is torch.nn.Parameter
    with Init(enabled=False):
        assert type(torch.nn.Linear(1, 1).weight) is torch.nn.Parameter


def check_a_model_that_is_there_already(group):
    model = mixed()
    Init(module=model)
    with GatheredParameters(model.parameters()):
        same_state(model.state_dict(), mixed().state_dict())


def check_it_casts(group):
    with Init(dtype=torch.float64):
        model = torch.nn.BatchNorm1d(3)
    assert model.weight.ds_tensor.dtype == torch.float64 == model.running_mean.dtype
    assert model.num_batches_tracked.dtype == torch.int64
    with pytest.raises(penstock.ConfigError, match="remote_device"):
        Init(remote_device="nvme")


def check_a_parameter_that_is_frozen_later(group):
    model = _spread()
    model.first.requires_grad_(False)
    engine, _ = initialize(model, 3)
    train(engine, 2)
    state = engine.module_state_dict()
    assert torch.equal(state["first.weight"], mixed().first.weight)
    assert not torch.equal(state["twice.weight"], mixed().twice.weight)


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))

if __name__ == "__main__":
    ranks.main(globals())
