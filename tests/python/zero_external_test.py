"""Parameters that modules return: what a model's code sees of them, and what is noted."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import initialize

import penstock
from penstock.zero.partition_parameters import ZeroParamStatus

WIDTH = 16
AVAILABLE = ZeroParamStatus.AVAILABLE


class Carrier:
    def __init__(self, out, bias):
        self.out, self.bias = out, bias


class Biased(torch.nn.Linear):
    """Returns its bias in the form that is asked for."""

    forms = {  # noqa: RUF012
        "tuple": lambda out, bias: (out, bias),
        "list": lambda out, bias: [out, [bias]],
        "dict": lambda out, bias: {"out": out, "bias": {"value": bias}},
        "object": Carrier,
    }

    def __init__(self, form):
        super().__init__(WIDTH, WIDTH)
        self.form = self.forms[form]

    def forward(self, x):
        return self.form(super().forward(x), self.bias)


class Attention(torch.nn.Module):
    is_spread = True

    def __init__(self, form="tuple"):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.biased = Biased(form)

    def forward(self, x):
        result = self.biased(self.linear(x))
        if isinstance(result, Carrier):
            out, bias = result.out, result.bias
        elif isinstance(result, dict):
            out, bias = result["out"], result["bias"]["value"]
        else:
            out, bias = result
            bias = bias[0] if isinstance(bias, list) else bias
        if self.is_spread:
            owner = bias if hasattr(bias, "ds_status") else bias.ds_param_alias
            assert owner.ds_status is AVAILABLE
        return out, bias


class Container(torch.nn.Module):
    def __init__(self, form="tuple"):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.attention = Attention(form)

    def forward(self, x):
        out, bias = self.attention(self.linear(x))
        return (out + bias).sum()


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.container = Container()
        self.counts = []

    def forward(self, x):
        loss = self.container(x)
        modules = (self, self.container, self.container.attention)
        self.counts.append(tuple(len(each._external_params) for each in modules))
        return loss


def _iterations(engine, count=5):
    for number in range(count):
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))
        loss = engine(x)
        assert torch.isfinite(loss)
        engine.backward(loss)
        engine.step()


def check_a_bias_that_three_levels_return_is_the_containers(group):
    torch.manual_seed(0)
    model = Outer()
    engine, _ = initialize(model, 3)
    before = engine.module_state_dict()
    _iterations(engine)
    assert model.counts == [(0, 1, 0)] * 5
    assert all(
        not torch.equal(each, before[name]) for name, each in engine.module_state_dict().items()
    )
    bias = model.container.attention.biased.bias
    assert dict(model.container._external_params) == {id(bias): bias}


def check_every_form_that_carries_a_parameter(group):
    for form in Biased.forms:
        engine, _ = initialize(Container(form), 3)
        for _ in range(2):
            loss = engine(torch.ones(WIDTH))
            counts = [len(each._external_params) for each in engine.module.modules()]
            assert counts == [1, 0, 0, 0, 0], form
            engine.backward(loss)
            engine.step()


def check_a_parameter_that_the_model_returns_stays_until_the_next_call(group):
    torch.manual_seed(0)
    model = Biased("tuple")
    expected = model.bias.detach().clone()
    engine, _ = initialize(model, 3)
    out, bias = engine(torch.ones(1, WIDTH))
    assert bias is model.bias and bias.ds_status is AVAILABLE
    assert len(model._external_params) == 0
    if dist.get_rank() == 0:  # No rank waits for another.
        assert torch.equal(bias.detach(), expected) and bias.sum() == expected.sum()
    engine.backward((out + bias).sum())
    engine.step()
    assert (bias.ds_status is AVAILABLE) == (group.size() == 1)
    assert not torch.equal(engine.module_state_dict()["bias"], expected)


def check_a_returned_parameter_trains_as_without_zero(group):
    states = []
    for stage in (0, 3):
        torch.manual_seed(0)
        engine, _ = initialize(Container("object"), stage)
        engine.module.attention.is_spread = stage == 3
        _iterations(engine)
        states.append(engine.module_state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def check_registering_by_hand(group):
    engine, _ = initialize(Container(), 3)
    container, weight = engine.module, engine.module.attention.linear.weight
    assert container._external_params == {}
    penstock.zero.register_external_parameter(container, weight)
    assert list(container._external_params) == [id(weight)]
    assert container._external_params[id(weight)] is weight
    _iterations(engine, 1)
    penstock.zero.unregister_external_parameter(container, weight)
    with pytest.raises(RuntimeError, match="is not registered with this Container"):
        penstock.zero.unregister_external_parameter(container, weight)
    with pytest.raises(RuntimeError, match=r"Tensor is not a torch\.nn\.Parameter"):
        penstock.zero.register_external_parameter(container, torch.ones(1))
    plain = torch.nn.Linear(1, 1)
    penstock.zero.register_external_parameter(plain, weight)
    assert len(plain._external_params) == 1
    with penstock.zero.GatheredParameters(weight, fwd_module=plain.register_module("x", None)):
        pass


def check_a_forward_that_fails_leaves_no_trace(group):
    torch.manual_seed(0)
    engine, _ = initialize(Outer(), 3)
    if group.size() == 1:
        with pytest.raises(RuntimeError):
            engine(torch.ones(WIDTH + 1))
    _iterations(engine)
    assert engine.module.counts == [(0, 1, 0)] * 5


def check_the_module_is_one_under_both_names(group):
    import penstock.runtime.zero.partition_parameters as other

    assert other is penstock.zero.partition_parameters
    assert [each.value for each in other.ZeroParamStatus] == [1, 2, 3]


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))

if __name__ == "__main__":
    ranks.main(globals())
