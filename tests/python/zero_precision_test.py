"""bf16 and fp16: copies of 32 bits, loss scales, steps that are skipped."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import WIDTH, initialize, loss_of, mixed, same_state, train, words_of

import penstock
from penstock import configuration
from penstock._engines.parameters.precision import gradient_scale_of
from penstock.accelerator import get_accelerator

BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "loss_scale": 138.0}}


def check_stages_train_to_the_same_bits(group):
    del group
    for options in (BF16, FP16):
        expected = None
        for stage in range(4):
            engine, _ = initialize(mixed(), stage, options={**options, "accumulation": 2})
            found = train(engine, 10), engine.module_state_dict()
            expected = expected or found
            assert found[0] == expected[0], (options, stage)
            same_state(found[1], expected[1])
        losses = expected[0][0]
        assert losses[-1] < losses[0] and all(map(torch.isfinite, map(torch.tensor, losses)))


def check_small_updates_are_not_lost(group):
    """The copies of 32 bits are those of a plain loop over them."""
    if group.size() > 1:
        return
    lr = {"optimizer": {"type": "SGD", "params": {"lr": 1e-4}}}
    engine, _ = initialize(mixed(), 3, options={**BF16, **lr})
    plain = mixed().bfloat16()
    copies = [each.detach().float() for each in plain.parameters()]
    optimizer = torch.optim.SGD(copies, lr=1e-4)
    for step in range(12):
        inputs, labels = words_of(10 * step, 0)
        loss_of(plain(inputs, step), labels).backward()
        for copy, parameter in zip(copies, plain.parameters(), strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(copies, plain.parameters(), strict=True):
                parameter.copy_(copy)
                parameter.grad = None
        train(engine, 1, first=step)
    same_state(engine.module_state_dict(), plain.state_dict())


def check_the_module_is_cast_in_place(group):
    del group
    for stage, options in ((0, FP16), (3, BF16)):
        layers = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.BatchNorm1d(4 * WIDTH)
        model = torch.nn.Sequential(*layers)
        kind = torch.float16 if options is FP16 else torch.bfloat16
        engine, optimizer = initialize(model, stage, options=options)
        assert engine.module is model
        assert {each.dtype for each in model.parameters()} == {kind}
        assert model[1].running_mean.dtype == kind
        assert model[1].num_batches_tracked.dtype == torch.int64
        updated = [each for group in optimizer.param_groups for each in group["params"]]
        assert {each.dtype for each in updated} <= {torch.float32}
        assert engine(torch.ones(2, WIDTH, dtype=kind)).dtype == kind


def check_an_overflow_on_one_rank_skips_the_step_on_all(group):
    options = {"fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}}
    for stage in range(4):
        engine, _ = initialize(mixed(), stage, options=options)
        train(engine, 1)
        assert engine.was_step_applied() and engine.loss_scale == 16
        before, rate = engine.module_state_dict(), engine.get_lr()
        inputs, labels = words_of(5, dist.get_rank())
        factor = 1e9 if dist.get_rank() == group.size() - 1 else 1.0
        engine.backward(loss_of(engine(inputs, 0).float(), labels) * factor)
        engine.step()
        same_state(engine.module_state_dict(), before)
        assert not engine.was_step_applied() and engine.get_lr() == rate
        assert (engine.skipped_steps, engine.global_steps, engine.loss_scale) == (1, 2, 8)
        train(engine, 1)
        assert engine.was_step_applied()


def check_what_was_set_meanwhile_is_updated(group):
    del group
    model = mixed()
    engine, _ = initialize(model, 3, options=BF16)
    train(engine, 1)
    with (
        penstock.zero.GatheredParameters(model.first.weight, modifier_rank=0),
        torch.no_grad(),
    ):
        model.first.weight.fill_(1.0)
    train(engine, 1)
    values = engine.module_state_dict()["first.weight"].float()
    assert (values - 1.0).abs().max() < 0.1 and not (values == 1.0).all()


def check_a_model_that_is_made_spread(group):
    del group
    states = []
    for init in (False, True):
        torch.manual_seed(0)
        with penstock.zero.Init(enabled=init, config_dict_or_path=BF16):
            model = type(mixed())()
        engine, _ = initialize(model, 3, options=BF16)
        states.append((train(engine, 2), engine.module_state_dict()))
    assert states[0][0] == states[1][0]
    same_state(states[0][1], states[1][1])
    if dist.get_world_size() > 1:
        with penstock.zero.Init():
            model = torch.nn.Linear(WIDTH, WIDTH)
        with pytest.raises(penstock.ConfigError, match=r'"weight" was spread as torch\.float32'):
            initialize(model, 3, options=BF16)


def check_the_configuration_of_the_reference_test(group):
    assert get_accelerator().is_bf16_supported()
    config = {
        "train_batch_size": group.size(),
        "steps_per_print": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1},
    }
    for options in (FP16, BF16):
        model = torch.nn.Linear(WIDTH, WIDTH)
        engine, _, _, _ = penstock.initialize(
            model=model, model_parameters=model.parameters(), config={**config, **options}
        )
        kind = torch.float16 if options is FP16 else torch.bfloat16
        before = engine.module_state_dict()
        for _ in range(5):
            loss = engine(torch.rand(WIDTH).to(engine.device).to(kind)).sum()
            assert torch.isfinite(loss)
            engine.backward(loss)
            engine.step()
        assert not torch.equal(engine.module_state_dict()["weight"], before["weight"])


def _scale(**options):
    values = {"train_batch_size": 1, "fp16": {"enabled": True, **options}}
    return gradient_scale_of(configuration.read(values))


def _course(scale, steps):
    """The scales after each of some steps: "x" overflows."""
    values = []
    for step in steps:
        scale.update(step == "x")
        values.append(scale.value)
    return values


def test_a_scale_is_fixed_where_one_is_given():
    assert _course(_scale(loss_scale=138), "x.x") == [138.0] * 3
    for section in (BF16, {"fp16": {"enabled": False}}):
        assert gradient_scale_of(configuration.read(section, needs_sizes=False)).value == 1.0


def test_a_scale_moves_as_the_configuration_says():
    """Recorded from DeepSpeed 0.19.8's DynamicLossScaler."""
    assert _scale().value == 65536.0
    options = {"initial_scale_power": 4, "loss_scale_window": 3, "hysteresis": 1}
    assert _course(_scale(**options), ".x......") == [16, 8, 8, 8, 8, 16, 16, 16]
    options = {"initial_scale_power": 4, "loss_scale_window": 2}
    assert _course(_scale(**options), "x...x.xx") == [16, 16, 16, 32, 32, 32, 16, 8]
    options = {"initial_scale_power": 4, "consecutive_hysteresis": True}
    assert _course(_scale(**options), "x.x.xx") == [16, 16, 16, 16, 16, 8]


def test_a_scale_ends():
    scale = _scale(initial_scale_power=2, min_loss_scale=2, hysteresis=1)
    assert _course(scale, "x") == [2]
    with pytest.raises(penstock.Error, match="smallest gradient scale, 2"):
        scale.update(True)


def test_what_does_not_fit_is_refused():
    for section, words in (
        ({**BF16, **FP16}, "bf16.enabled is true, too"),
        ({"fp16": {"enabled": True, "auto_cast": True}}, "auto_cast"),
        ({"fp16": {"enabled": True, "loss_scale": -1}}, "fp16.loss_scale = -1"),
    ):
        with pytest.raises(penstock.ConfigError, match=words):
            initialize(torch.nn.Linear(1, 1), 0, options=section)


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))

if __name__ == "__main__":
    ranks.main(globals())
