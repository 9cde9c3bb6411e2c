"""Parameters of ZeRO 3 that are read outside of their engine's calls: by single operators, by parts
of a model that a script calls itself, and by code that wants their values.

All ranks read the same next; what they get is what a model that nobody has spread has.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
from contextlib import nullcontext

import numpy
import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import WIDTH, initialize, loss_of, mixed, same_state, train, words_of

import penstock
from penstock.zero import GatheredParameters, Init
from penstock.zero.partition_parameters import ZeroParamStatus

AWAY = ZeroParamStatus.NOT_AVAILABLE


def _saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _state_of(model):
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


# What reads parameters of a model, and what it gives; `first.weight` is spread.
READS = {
    "norm": lambda model: model.first.weight.norm(),
    "operator": lambda model: model.first.weight + 1,
    "second operand": lambda model: torch.ones(()) * model.first.weight,
    "two of them": lambda model: model.first.weight @ model.twice.weight,
    "in a list": lambda model: torch.cat([torch.ones(1, 8), model.first.weight]),
    "function of torch.nn": lambda model: torch.nn.functional.linear(
        torch.ones(2, 8), model.first.weight, model.first.bias
    ),
    "view": lambda model: model.first.weight[0].sum(),
    "view of a view": lambda model: model.first.weight.t().view(8, 4, 6)[1].clone(),
    "parts": lambda model: [each.clone() for each in model.first.weight.chunk(3)],
    "data": lambda model: model.first.weight.data.abs().sum(),
    "detach": lambda model: model.first.weight.detach().mul(2),
    "same type": lambda model: model.first.weight.float().sum(),
    "other type": lambda model: model.first.weight.double(),
    "contiguous": lambda model: model.first.weight.contiguous().sum(),
    "item": lambda model: model.first.weight[0, 0].item(),
    "tolist": lambda model: model.first.weight.tolist(),
    "iteration": lambda model: [each.sum() for each in model.first.weight],
    "comparison": lambda model: (model.first.weight == model.first.weight).all(),
    "truth": lambda model: bool(model.first.weight[0, 0] == model.first.weight[0, 0]),
    "all of them": lambda model: [each.data.sum() for each in model.parameters()],
    "state_dict": _state_of,
    "torch.save": lambda model: _saved(model).state_dict(),
    "torch.save of a state_dict": lambda model: _saved(model.state_dict()),
    "torch.save of one": lambda model: _saved(model.first.weight),
    "pickle": lambda model: pickle.loads(pickle.dumps(model.first.weight)),
    "pickle of a view": lambda model: pickle.loads(pickle.dumps(model.first.weight.data)),
    "deepcopy": lambda model: copy.deepcopy(model).state_dict(),
    "deepcopy of one": lambda model: copy.deepcopy(model.first.weight),
    "deepcopy of a state_dict": lambda model: copy.deepcopy(model.state_dict()),
    "numpy": lambda model: model.first.weight.detach().numpy(),
    "numpy.asarray": lambda model: numpy.asarray(model.first.weight.data),
    "forward": lambda model: model(torch.zeros(1, 2, dtype=torch.long), 0),
    "part": lambda model: model.first(torch.ones(2, 8)),
    "gradients": lambda model: torch.autograd.grad(
        (model.first.weight * model.first.weight).sum(), model.first.weight
    ),
    "gradients of a part": lambda model: torch.autograd.grad(
        model.first(torch.ones(2, 8)).square().sum(), [model.first.weight, model.first.bias]
    ),
}


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def check_reads_have_the_values(group):
    expected = mixed()
    engine, _ = initialize(mixed(), 3)
    for name, read in READS.items():
        assert _plain(read(engine.module)) == _plain(read(expected)), name
        if group.size() > 1:
            engine.zero_grad()
            assert engine.module.first.weight.ds_status is AWAY, name
    same_state(engine.module_state_dict(), expected.state_dict())


def check_reads_between_steps_change_none(group):
    expected, _ = initialize(mixed(), 0)
    engine, _ = initialize(mixed(), 3)
    for step, read in enumerate(list(READS.values())[::4]):
        read(engine.module)
        engine.zero_grad()
        assert train(engine, 1, first=step) == train(expected, 1, first=step)
    same_state(engine.module_state_dict(), expected.module_state_dict())


def check_what_was_copied_stays(group):
    engine, _ = initialize(mixed(), 3)
    state = engine.module.state_dict()
    kept = copy.deepcopy(engine.module)
    before = _state_of(mixed())
    train(engine, 2)
    same_state(_state_of(kept), before)
    same_state(_plain_tensors(state), _plain_tensors(engine.module_state_dict()))


def _plain_tensors(state):
    return {name: each.clone() for name, each in state.items()}


def check_printing_brings_nothing(group):
    engine, _ = initialize(mixed(), 3)
    weight = engine.module.first.weight
    if group.size() > 1 and dist.get_rank() == 0:
        of = f"first.weight: (24, 8), torch.float32, spread over {group.size()} ranks"
        assert repr(weight) == f"Parameter {of}"
        assert f"{weight.data}" == f"View of parameter {of}"
        str(engine.module)
        assert [each.shape for each in engine.module.state_dict().values()]
    train(engine, 1)


def check_memory_that_nobody_watches_is_not_given_out(group):
    engine, _ = initialize(mixed(), 3)
    if group.size() == 1:
        return
    for name in ("data_ptr", "untyped_storage", "__dlpack__", "share_memory_"):
        for tensor in (engine.module.first.weight, engine.module.first.weight.data):
            with pytest.raises(penstock.Error, match=re.escape(f"{name}() would need")):
                getattr(tensor, name)()
    train(engine, 1)


def _by_parts(model, words, step):
    """What the model's forward does, step by step, with a module that is called and a weight."""
    x = model.embedding(words) * model.scale
    x = torch.nn.functional.linear(model.first(x).tanh(), model.first.weight.t())
    x = model.twice(model.twice(x))
    x, bias = model.bias(x)
    return model.head(model.norm(x + bias))


def _losses(stage, own, accumulation=1):
    options = {"gradient_accumulation_steps": accumulation}
    engine, _ = initialize(mixed(), stage, options=options)
    losses = []
    for step in range(3 * accumulation):
        inputs, labels = words_of(step, dist.get_rank())
        loss = loss_of(_by_parts(engine.module, inputs, step), labels)
        loss = loss + 0.01 * engine.module.twice.weight.square().sum()
        if own:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, engine.module_state_dict()


def check_parts_train_as_with_whole_replicas(group):
    for accumulation, own in ((1, False), (1, True), (2, False)):
        expected, state = _losses(0, own, accumulation)
        losses, found = _losses(3, own, accumulation)
        assert losses == expected, (accumulation, own)
        same_state(found, state)


def check_a_backward_through_parts_alone_divides_nothing(group):
    with pytest.raises(RuntimeError, match="not divided by the 2 microbatches"):
        _losses(0, own=True, accumulation=2)


def check_a_loss_of_parameters_alone(group):
    """A backward of the script's own, which passes through nothing that a forward has returned."""
    states = []
    for stage in (0, 3):
        engine, _ = initialize(mixed(), stage)
        first, twice = engine.module.first.weight, engine.module.twice.weight
        for _ in range(2):
            (first.square().sum() + (first @ twice).tanh().sum()).backward()
            engine.step()
        states.append(engine.module_state_dict())
    same_state(*states)
    assert not torch.equal(states[0]["first.weight"], mixed().first.weight)


def check_evaluation_by_the_module(group):
    expected, _ = initialize(mixed(), 0)
    engine, _ = initialize(mixed(), 3)
    for step, without in enumerate((torch.no_grad, torch.inference_mode, nullcontext)):
        assert train(engine, 1, first=step) == train(expected, 1, first=step)
        inputs, labels = words_of(50 + step, dist.get_rank())
        with without():
            found = [loss_of(each.module(inputs, 1), labels).item() for each in (engine, expected)]
        assert found[0] == found[1]
    if group.size() > 1:
        train(engine, 1)  # The forward with gradients is part of this step.
        with torch.no_grad():
            pagings = []
            for call in (engine, engine, engine.module):
                call(words_of(60, 0)[0], 1)
                pagings.append(engine.paging)
        assert pagings[1] == pagings[2], "it is a forward like the engine's"


def check_what_is_written_is_that_of_rank_0(group):
    expected = mixed()
    engine, _ = initialize(mixed(), 3)
    rank = dist.get_rank()
    for model, by in ((expected, 0), (engine.module, rank)):
        with torch.no_grad():
            model.first.weight.fill_(1.0 + by)
            model.twice.weight[0].mul_(2.0 + by)
            model.twice.weight[1] = 3.0 + by
            model.never.weight.add_(torch.full((WIDTH, WIDTH), 1.0 + by))
        model.first.bias.data.sub_(1.0 + by)
        model.bias.weight.data = torch.full((WIDTH, WIDTH), 5.0 + by)
        torch.nn.init.constant_(model.sometimes.weight, 7.0 + by)
        for each in model.norm.parameters():
            each.data.copy_(torch.full((WIDTH,), 9.0))
    same_state(engine.module_state_dict(), expected.state_dict())
    other = mixed(seed=1)
    engine.module.load_state_dict(other.state_dict())
    same_state(engine.module_state_dict(), other.state_dict())
    train(engine, 1)


def check_a_read_by_one_rank_ends_all(group):
    if group.size() == 1:
        return
    nexts = {
        "forward": lambda engine: engine(words_of(0, 0)[0], 0),
        "gathering": lambda engine: GatheredParameters(engine.module.twice.weight).__enter__(),
        "other read": lambda engine: engine.module.twice.weight.sum(),
        "step": lambda engine: engine.step(),
    }
    for name, follows in nexts.items():
        engine, _ = initialize(mixed(), 3)
        if name == "step":
            engine.backward(loss_of(engine(words_of(0, 0)[0], 0), words_of(0, 0)[1]))
        with pytest.raises(penstock.CommError) as raised:
            if dist.get_rank() == 0:
                engine.module.first.weight.norm()
            else:
                follows(engine)
        assert '"first.weight"' in str(raised.value), (name, raised.value)
        assert "outside" in str(raised.value), (name, raised.value)


def check_a_part_that_fails_says_why(group):
    engine, _ = initialize(mixed(), 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        engine.module.first(torch.ones(2, 5))
    if group.size() > 1:
        with pytest.raises(penstock.Error, match="shapes cannot be multiplied"):
            engine(words_of(0, 0)[0], 0)  # Ranks that failed tell the others.


def check_models_that_no_engine_has_yet(group):
    """Made in Init: what is between it and initialize() reads and writes them, too."""
    expected = mixed()
    with Init():
        model = mixed()
    for name, read in READS.items():
        assert _plain(read(model)) == _plain(read(expected)), name
    for each in (model, expected):
        each.zero_grad()
        with torch.no_grad():
            each.first.weight.mul_(2.0 if each is expected else 2.0 + dist.get_rank())
        each.twice.weight.data.zero_()
    same_state(_state_of(model), expected.state_dict())
    x = torch.ones(2, WIDTH)
    assert torch.equal(model.first(x), expected.first(x))
    if group.size() > 1:
        words = "outside of an engine"
        with Init(), pytest.raises(penstock.CommError, match=words):
            other = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
            other[dist.get_rank() % 2].weight.sum()
    whole, _ = initialize(expected, 0)
    engine, _ = initialize(model, 3)
    assert train(engine, 2) == train(whole, 2)


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))
test_four = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
