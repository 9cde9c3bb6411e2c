"""Parameters of ZeRO 3 outside of a step: what they say of themselves, and GatheredParameters."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle

import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import initialize, mixed, same_state, train

import penstock
from penstock.zero.partition_parameters import GatheredParameters, ZeroParamStatus

AWAY = ZeroParamStatus.NOT_AVAILABLE
HERE = ZeroParamStatus.AVAILABLE


def _saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def check_what_needs_no_values_is_answered(group):
    engine, _ = initialize(mixed(), 3)
    weight = engine.module.first.weight
    assert isinstance(weight, torch.nn.Parameter) and isinstance(weight, torch.Tensor)
    assert weight.shape == (24, 8) and weight.numel() == 192 and weight.dim() == 2
    assert (weight.dtype, weight.device) == (torch.float32, torch.device("cpu"))
    assert weight.requires_grad and weight.is_leaf and weight.grad is None
    assert weight.is_contiguous() and weight.stride() == (8, 1) and len(weight) == 24
    assert {weight: 1}[weight] == 1
    assert sum(each.numel() for each in engine.parameters()) > 192
    weight.requires_grad_(True)
    if group.size() > 1:
        words = f"Parameter first.weight: (24, 8), torch.float32, spread over {group.size()} ranks"
        assert repr(weight) == f"{weight}" == words


def check_attributes(group):
    model = mixed()
    whole = {name: each.detach().clone() for name, each in model.named_parameters()}
    engine, _ = initialize(model, 3)
    ids = [each.ds_id for each in model.parameters()]
    assert ids == sorted(set(ids))
    for name, each in model.named_parameters():
        assert each.ds_shape == whole[name].shape and each.ds_numel == whole[name].numel()
        stays = each.numel() <= 8 or group.size() == 1
        assert each.ds_status is (HERE if stays else AWAY), name
        parts = [None] * group.size()
        dist.all_gather_object(parts, each.ds_tensor.tolist(), group=group)
        values = parts[0] if stays else [value for part in parts for value in part]
        assert values == whole[name].flatten().tolist(), name
    for module in model.modules():
        assert module._external_params == {}
    del engine


def check_gathered_parameters_are_whole(group):
    model = mixed()
    engine, _ = initialize(model, 3)
    with GatheredParameters(model.parameters()):
        assert all(each.ds_status is HERE for each in model.parameters())
        if dist.get_rank() == 0:
            same_state(model.state_dict(), mixed().state_dict())
            same_state(copy.deepcopy(model).state_dict(), mixed().state_dict())
            same_state(_saved(model.state_dict()), mixed().state_dict())
            assert type(pickle.loads(pickle.dumps(model.first.weight))) is torch.nn.Parameter
            assert model.first.weight.detach().numpy().shape == (24, 8)
            same_state(_saved(model).state_dict(), mixed().state_dict())
        kept = model.state_dict()
        copied = copy.deepcopy(model)
    same_state(kept, mixed().state_dict())
    assert type(copied.first.weight) is torch.nn.Parameter
    copied(torch.zeros(1, 2, dtype=torch.long), 0)
    assert model.first.weight.ds_status is (HERE if group.size() == 1 else AWAY)
    train(engine, 1)


def check_what_one_rank_changes_reaches_all(group):
    last = group.size() - 1
    for stage in (0, 1, 2, 3):
        model = mixed()
        engine, _ = initialize(model, stage)
        if stage == 3:
            with GatheredParameters([model.first.weight, model.norm.weight], modifier_rank=last):
                if dist.get_rank() == last:
                    torch.nn.init.constant_(model.first.weight, 2.0)
                    model.norm.weight.data.fill_(3.0)
            state = engine.module_state_dict()
            assert (state["first.weight"] == 2.0).all() and (state["norm.weight"] == 3.0).all()
            assert torch.equal(state["head.bias"], mixed().head.bias)
        else:
            with GatheredParameters(model.first.weight):
                pass  # Is whole anyway.
        train(engine, 1)


def check_changes_that_nobody_was_to_make(group):
    if group.size() == 1:
        return
    model = mixed()
    engine, _ = initialize(model, 3)

    weight = model.first.weight
    words = r'(?s)"first.weight": in-place modification .* modifier_rank=0'
    with pytest.raises(penstock.Error, match=words), GatheredParameters(weight):  # noqa: SIM117
        with torch.no_grad():
            weight.add_(1)
    # Behind autograd's back: found by the ranks that have a part of it.
    has_part = weight.ds_tensor.numel() > 0
    raises = pytest.raises(penstock.Error, match=words) if has_part else contextlib.nullcontext()
    with raises, GatheredParameters(weight):
        weight.data.add_(1)
    same_state(engine.module_state_dict(), mixed().state_dict())
    train(engine, 1)


def check_contexts_in_contexts(group):
    model = mixed()
    engine, _ = initialize(model, 3)
    first, twice = model.first.weight, model.twice.weight
    with GatheredParameters([first, twice]):
        with GatheredParameters(first):
            assert first.ds_status is HERE
        assert first.ds_status is HERE and torch.equal(first, mixed().first.weight)
    with GatheredParameters([first, twice], modifier_rank=0):
        with torch.no_grad():
            first.fill_(1.0 + dist.get_rank())
        with GatheredParameters(twice, modifier_rank=0), torch.no_grad():
            twice.fill_(5.0 + dist.get_rank())
        assert (twice == 5.0).all()
    state = engine.module_state_dict()
    assert (state["first.weight"] == 1.0).all() and (state["twice.weight"] == 5.0).all()
    if group.size() == 1:
        return
    with (
        GatheredParameters(first, modifier_rank=0),
        pytest.raises(penstock.Error, match="to be changed by rank 0, and not by rank 1"),
        GatheredParameters([twice, first], modifier_rank=1),
    ):
        pass
    assert first.ds_status is AWAY and twice.ds_status is AWAY
    with pytest.raises(ValueError, match=f"must be one of the {group.size()} ranks"):
        GatheredParameters(first, modifier_rank=group.size())
    with GatheredParameters(first, enabled=False):
        assert first.ds_status is AWAY
    train(engine, 1)


def check_steps_inside_of_a_context(group):
    states = []
    for gathers in (False, True):
        engine, _ = initialize(mixed(), 3)
        weight = engine.module.first.weight
        with GatheredParameters(weight, enabled=gathers):
            train(engine, 2)
            if gathers:
                states.append({"first.weight": weight.detach().clone()})
        states.append(engine.module_state_dict())
    same_state(states[0], states[2])
    assert torch.equal(states[1]["first.weight"], states[2]["first.weight"])


def check_a_gathered_parameter_may_be_part_of_a_loss(group):
    losses = []
    for stage in (0, 3):
        engine, _ = initialize(mixed(), stage)
        weight = engine.module.first.weight
        for step in range(3):
            x = torch.full((1, 3), step, dtype=torch.long)
            with GatheredParameters(weight):
                loss = engine(x, 0).sum() + weight.pow(2).sum()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))
test_four = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
