"""penstock.initialize for any module, ZeRO 0 to 3: the same training, to the bit."""

from __future__ import annotations

import copy
import math

import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import (
    LENGTH,
    WIDTH,
    WORDS,
    config,
    initialize,
    loss_of,
    mixed,
    same_state,
    train,
    words_of,
)

import penstock
from penstock.zero.partition_parameters import ZeroParamStatus

STEPS = 20


def check_stages_train_to_the_same_bits(group):
    options = {"accumulation": 2, "gradient_clipping": 0.5}
    expected = None
    for stage in range(4):
        engine, _ = initialize(mixed(), stage, options=options)
        found = train(engine, STEPS)
        state = engine.module_state_dict()
        if expected is None:
            expected, first_state = found, state
            assert len(found[0]) == 2 * STEPS and found[0][-1] < found[0][0]
            assert max(found[1]) > 0.5, "nothing is clipped"
        assert found == expected, stage
        same_state(first_state, state)
        if stage == 3 and group.size() > 1:
            assert engine.paging["faults"] > 0 and engine.paging["drops"] > 0


def check_replicas_train_as_one_process_on_the_whole_batch(group):
    engine, _ = initialize(mixed(), 3)
    plain = mixed()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02, weight_decay=0.01)
    for step in range(3):
        batches = [words_of(10 * step, rank) for rank in range(group.size())]
        loss = sum(loss_of(plain(inputs, step), labels) for inputs, labels in batches)
        (loss / group.size()).backward()
        norm = torch.nn.utils.get_total_norm(
            [each.grad for each in plain.parameters() if each.grad is not None]
        )
        optimizer.step()
        optimizer.zero_grad()
        _, norms = train(engine, 1, first=step)
        assert math.isclose(norms[0], norm.item(), rel_tol=1e-4)
    state = engine.module_state_dict()
    for name, values in plain.state_dict().items():
        torch.testing.assert_close(state[name], values, rtol=1e-4, atol=1e-5)


def check_values_begin_as_those_of_rank_0(group):
    for stage in range(4):
        engine, _ = initialize(mixed(seed=dist.get_rank()), stage)
        same_state(engine.module_state_dict(), mixed(seed=0).state_dict())


def check_parameters_without_a_gradient_stay(group):
    for stage in range(4):
        model = mixed()
        before = copy.deepcopy(model.never.state_dict())
        engine, _ = initialize(model, stage)
        train(engine, 3)
        state = engine.module_state_dict()
        same_state(before, {name: state[f"never.{name}"] for name in before})
        assert not torch.equal(state["first.weight"], mixed().first.weight)


def check_frozen_parameters_stay(group):
    for stage in range(4):
        model = mixed()
        model.first.requires_grad_(False)
        engine, _ = initialize(model, stage)
        train(engine, 2)
        state = engine.module_state_dict()
        assert torch.equal(state["first.weight"], mixed().first.weight)


def check_hooks_on_accumulated_gradients_fire(group):
    """Before and after initialize; sums over replicas do not take their place."""
    del group
    for stage in range(4):
        model, called = mixed(), []

        def calls(name, into=called):
            return lambda _: into.append(name)

        model.first.weight.register_post_accumulate_grad_hook(calls("before"))
        engine, _ = initialize(model, stage)
        weight = engine.module.norm.weight
        weight.register_post_accumulate_grad_hook(calls("after"))
        found = train(engine, 3)
        assert sorted(called) == 3 * ["after"] + 3 * ["before"], (stage, called)
        plain, _ = initialize(mixed(), stage)
        assert found == train(plain, 3)


def check_forward_returns_what_the_module_returns(group):
    class Thing:
        def __init__(self, x):
            self.x = x

    class Returns(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, 2 * WIDTH)

        def forward(self, x, kind):
            x = self.linear(x).sum()
            return {"tensor": x, "dict": {"loss": x, "x": x}, "none": None, "object": Thing(x)}[
                kind
            ]

    for stage in (0, 3):
        engine, _ = initialize(Returns(), stage)
        x = torch.ones(1, WIDTH)
        assert type(engine(x, "tensor")) is torch.Tensor
        assert engine(x, "none") is None
        assert set(engine(x, "dict")) == {"loss", "x"}
        thing = engine(x, kind="object")
        assert type(thing) is Thing
        engine.backward(thing.x)
        engine.step()


def check_optimizers_and_courses_of_ones_own(group):
    expected = {}
    for stage in range(4):
        model = mixed()
        groups = [
            {"params": [model.first.weight, model.norm.weight], "lr": 0.05},
            {"params": [model.twice.weight, model.scale]},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        engine, returned, _, scheduler = penstock.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            config=config(stage),
        )
        assert returned is optimizer and scheduler is engine.lr_scheduler
        before = engine.module_state_dict()
        train(engine, 3)
        assert engine.get_lr() == [0.05 / 8, 0.1 / 8]
        state = engine.module_state_dict()
        moved = {name for name in state if not torch.equal(state[name], before[name])}
        assert moved == {"first.weight", "norm.weight", "twice.weight", "scale"}
        expected = expected or state
        same_state(expected, state)


def check_evaluation_between_steps(group):
    engine, _ = initialize(mixed(), 3)
    inputs, labels = words_of(0, dist.get_rank())
    with torch.no_grad():
        before = loss_of(engine(inputs, 0), labels)
    loss = loss_of(engine(inputs, 0), labels)
    with torch.no_grad():
        engine(inputs, 1)
    assert loss.item() == before.item()
    engine.backward(loss)
    engine.step()
    with torch.no_grad():
        assert loss_of(engine(inputs, 0), labels) < before


def check_two_forwards_before_a_backward(group):
    states = []
    for stage in (0, 3):
        engine, _ = initialize(mixed(), stage)
        for step in range(3):
            both = [words_of(100 * step + i, dist.get_rank()) for i in range(2)]
            losses = [loss_of(engine(inputs, step), labels) for inputs, labels in both]
            engine.backward(losses[0] + losses[1])
            engine.step()
        states.append(engine.module_state_dict())
    same_state(*states)


def check_wrong_calls_say_so(group):
    engine, _ = initialize(mixed(), 3)
    inputs, labels = words_of(0, dist.get_rank())
    outputs = engine(inputs, 0)
    with pytest.raises(
        TypeError, match=rf"loss is \(4, {LENGTH}, {WORDS}\), must be a scalar tensor"
    ):
        engine.backward(outputs)
    loss = loss_of(outputs, labels)
    engine.backward(loss)
    engine.step()
    with pytest.raises(penstock.ConfigError, match=r"stage = 4: must be in \[0, 3\]"):
        initialize(mixed(), 4)
    with pytest.raises(penstock.ConfigError, match="train_batch_size"):
        penstock.initialize(
            model=mixed(),
            config={"train_batch_size": group.size() + 1, "gradient_accumulation_steps": 7},
        )


def check_accumulation_is_counted(group):
    engine, _ = initialize(mixed(), 3, options={"accumulation": 3, "micro": 2})
    assert engine.train_batch_size() == 6 * group.size()
    assert engine.train_micro_batch_size_per_gpu() == 2
    for call in range(6):
        assert engine.is_gradient_accumulation_boundary() == (call % 3 == 2)
        inputs, labels = words_of(call, dist.get_rank())
        returned = loss_of(engine(inputs, 0), labels)
        assert torch.equal(engine.backward(returned), returned.detach() / 3)
        engine.step()
    assert (engine.micro_steps, engine.global_steps) == (6, 2)
    assert engine.global_samples == 12 * group.size()


def check_a_loader_gives_each_replica_its_share(group):
    data = [(torch.tensor([i]), torch.tensor([i])) for i in range(8 * group.size())]
    _, _, loader, _ = penstock.initialize(model=mixed(), training_data=data, config=config(0))
    mine = torch.cat([inputs for inputs, _ in loader])
    everybody = [torch.zeros_like(mine) for _ in range(group.size())]
    dist.all_gather(everybody, mine, group=group)
    assert sorted(torch.cat(everybody).flatten().tolist()) == list(range(8 * group.size()))


def check_a_not_finite_gradient_changes_nothing(group):
    for stage in range(4):
        engine, _ = initialize(mixed(), stage)
        before = engine.module_state_dict()
        inputs, labels = words_of(0, dist.get_rank())
        factor = math.inf if dist.get_rank() == group.size() - 1 else 1.0
        engine.backward(loss_of(engine(inputs, 0), labels) * factor)
        with pytest.raises(penstock.Error, match=r"step 0: the gradient norm is"):
            engine.step()
        assert all(torch.equal(each, before[name]) for name, each in mixed().state_dict().items())


def check_ranks_with_other_models_hear_of_it(group):
    if group.size() == 1:
        return
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3 + (dist.get_rank() == 1))
    with pytest.raises(penstock.CommError, match=r"rank 0 has parameter weight=\(3, 3\)"):
        initialize(model, 3)


def check_a_configuration_that_is_wrong_on_one_rank(group):
    if group.size() == 1:
        return
    is_wrong = dist.get_rank() == group.size() - 1
    expected = penstock.ConfigError if is_wrong else penstock.CommError
    with pytest.raises(expected, match=r"zero_optimization\.stage = 4"):
        initialize(mixed(), 4 if is_wrong else 0)


def check_an_exception_on_one_rank_is_heard_by_all(group):
    engine, _ = initialize(mixed(), 3)
    inputs, labels = words_of(0, dist.get_rank())
    broken = dist.get_rank() == 0 and group.size() > 1
    if group.size() == 1:
        with pytest.raises(IndexError):
            engine(inputs + WORDS, 0)  # And goes on, since nobody else has to.
        train(engine, 1)
        return
    expected = IndexError if broken else penstock.CommError
    with pytest.raises(expected) as raised:
        engine.backward(loss_of(engine(inputs + WORDS * broken, 0), labels))
        engine.step()
    if not broken:
        assert "rank 0 failed: IndexError" in str(raised.value)


def check_control_flow_that_differs_is_one_error(group):
    if group.size() == 1:
        return

    class Either(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left = torch.nn.Linear(WIDTH, WIDTH)
            self.right = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x, left):
            return (self.left(x) if left else self.right(x)).sum()

    engine, _ = initialize(Either(), 3)
    x = torch.ones(1, WIDTH)
    engine.backward(engine(x, True))
    engine.step()
    with pytest.raises(penstock.CommError, match="replicas run different operators") as raised:
        engine.backward(engine(x, dist.get_rank() != 1))
        engine.step()
    assert "left" in str(raised.value) and "right" in str(raised.value), raised.value


def check_compiled_modules_are_refused(group):
    if group.size() == 1:
        return
    model = mixed()
    model.twice = torch.compile(model.twice, backend="eager")
    with pytest.raises(penstock.ConfigError, match='"twice" is compiled'):
        initialize(model, 3)
    initialize(model, 2)


def check_statuses_through_a_step(group):
    engine, _ = initialize(mixed(), 3)
    away = ZeroParamStatus.AVAILABLE if group.size() == 1 else ZeroParamStatus.NOT_AVAILABLE
    seen = {}
    model = engine.module
    model.first.register_forward_hook(
        lambda module, args, output: seen.update(first=module.weight.ds_status)
    )
    assert model.first.weight.ds_status is away
    train(engine, 2)
    assert seen == {"first": ZeroParamStatus.AVAILABLE}
    assert model.first.weight.ds_status is away
    assert model.norm.weight.ds_status is ZeroParamStatus.AVAILABLE, "it is small"


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))
test_four = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
