"""Optimizers by DeepSpeed's names against loops of plain numbers, and OneCycle's curve."""

import math
import pickle

import pytest
import torch

import penstock
from penstock.lr_schedules import OneCycle
from penstock.ops.adagrad import DeepSpeedCPUAdagrad
from penstock.ops.adam import DeepSpeedCPUAdam, FusedAdam
from penstock.ops.lamb import FusedLamb
from penstock.ops.lion import FusedLion

STEPS = 6


def two_layers():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def train(step, model, zero):
    for number in range(STEPS):
        zero()
        inputs = torch.linspace(-1, 1, 12).view(3, 4) * (number + 1)
        step(model(inputs).square().mean())


def weights_of(make):
    """By an optimizer that steps by itself."""
    model = two_layers()
    optimizer = make(list(model.parameters()))

    def step(loss):
        loss.backward()
        optimizer.step()

    train(step, model, model.zero_grad)
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def weights_of_engine(section, stage=0, **options):
    model = two_layers()
    config = {"train_batch_size": 3, "optimizer": section, "zero_optimization": {"stage": stage}}
    engine = penstock.initialize(model=model, config={**config, **options})[0]

    def step(loss):
        engine.backward(loss)
        engine.step()

    train(step, engine, lambda: None)
    state = engine.module_state_dict()
    return torch.cat([state[name].flatten() for name, _ in model.named_parameters()])


class LionInFloats:
    """Element by element, as the paper has it."""

    def __init__(self, parameters, lr, betas, decay):
        self.parameters, self.lr, self.betas, self.decay = parameters, lr, betas, decay
        self.momenta = [[0.0] * each.numel() for each in parameters]

    def step(self):
        for each, momentum in zip(self.parameters, self.momenta, strict=True):
            values, gradient = each.detach().flatten().tolist(), each.grad.flatten().tolist()
            for i, g in enumerate(gradient):
                by = self.betas[0] * momentum[i] + (1 - self.betas[0]) * g
                sign = math.copysign(1.0, by) if by else 0.0
                values[i] = values[i] * (1 - self.lr * self.decay) - self.lr * sign
                momentum[i] = self.betas[1] * momentum[i] + (1 - self.betas[1]) * g
            each.data.copy_(torch.tensor(values).view(each.shape))


class LambInFloats:
    def __init__(self, parameters, lr, decay):
        self.parameters, self.lr, self.decay, self.number = parameters, lr, decay, 0
        self.means = [torch.zeros(each.numel(), dtype=torch.double) for each in parameters]
        self.squares = [each.clone() for each in self.means]

    def step(self):
        self.number += 1
        correction = math.sqrt(1 - 0.999**self.number) / (1 - 0.9**self.number)
        for each, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            gradient, values = each.grad.flatten().double(), each.detach().flatten().double()
            mean.copy_(0.9 * mean + 0.1 * gradient)
            square.copy_(0.999 * square + 0.001 * gradient * gradient)
            by = mean / (square.sqrt() + 1e-8) + self.decay * values
            rate = min(max((values.norm() / by.norm()).item(), 0.01), 10.0)
            each.data.copy_((values - self.lr * correction * rate * by).view(each.shape))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_lion_of_a_configuration_steps_as_the_paper_says(stage):
    params = {"lr": 0.01, "betas": [0.8, 0.95], "weight_decay": 0.1}
    found = weights_of_engine({"type": "Lion", "params": params}, stage)
    expected = weights_of(lambda all: LionInFloats(all, 0.01, (0.8, 0.95), 0.1))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_lamb_of_a_configuration_steps_as_the_paper_says():
    found = weights_of_engine({"type": "Lamb", "params": {"lr": 0.02, "weight_decay": 0.1}})
    expected = weights_of(lambda all: LambInFloats(all, 0.02, 0.1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_lamb_is_refused_where_parameters_would_be_cut():
    with pytest.raises(penstock.ConfigError, match='use "Lamb"'):
        weights_of_engine({"type": "FusedLamb"})
    with pytest.raises(penstock.ConfigError, match="gradients are not compressed"):
        weights_of_engine({"type": "OneBitAdam"})


@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_by_deepspeeds_names_is_torchs_to_the_bit(decoupled):
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    expected = weights_of(lambda all: kind(all, lr=0.05, weight_decay=0.2))
    fused = weights_of(lambda all: FusedAdam(all, 0.05, adam_w_mode=decoupled, weight_decay=0.2))
    on_cpu = weights_of(
        lambda all: DeepSpeedCPUAdam(all, 0.05, adamw_mode=decoupled, weight_decay=0.2)
    )
    assert torch.equal(fused, expected)
    assert torch.equal(on_cpu, expected)


def test_adagrad_by_deepspeeds_name_is_torchs():
    expected = weights_of(lambda all: torch.optim.Adagrad(all, lr=0.05))
    assert torch.equal(weights_of(lambda all: DeepSpeedCPUAdagrad(all, 0.05)), expected)


def test_what_the_update_lacks_is_refused():
    model = two_layers()
    for make in (
        lambda: FusedAdam(model.parameters(), bias_correction=False),
        lambda: FusedLamb(model.parameters(), amsgrad=True),
        lambda: FusedLion(model.parameters(), betas=(0.9, 1.0)),
        lambda: DeepSpeedCPUAdam(model.parameters(), fp32_optimizer_states=False),
    ):
        with pytest.raises(ValueError):
            make()


def test_an_engines_optimizer_answers_as_deepspeeds_wrapper_does():
    model = two_layers()
    given = torch.optim.AdamW(model.parameters(), lr=0.01)
    fp16 = {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}
    engine, optimizer, _, _ = penstock.initialize(
        model=model, optimizer=given, config={"train_batch_size": 3, "fp16": fp16}
    )
    assert optimizer is given
    assert optimizer.optimizer is given
    assert type(optimizer).__name__ == "AdamW"
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (optimizer.cur_scale, optimizer.loss_scale, optimizer.overflow) == (16, 16, False)
    assert (engine.loss_scale, engine.get_loss_scale(), engine.dynamic_loss_scale()) == (
        16, 16, True,
    )  # fmt: skip
    inputs = torch.ones(3, 4, dtype=torch.half)
    engine.backward(engine(inputs).float().square().mean())
    gradients = [each for group in optimizer.averaged_gradients.values() for each in group]
    assert len(gradients) == 4
    assert all(each is not None for each in gradients)
    engine.step()
    assert (optimizer.overflow, optimizer.cur_scale) == (False, 16)
    engine.backward(engine(inputs).float().square().mean() * math.inf)
    engine.step()
    assert (optimizer.overflow, optimizer.cur_scale, optimizer.loss_scaler.cur_scale) == (
        True, 8, 8,
    )  # fmt: skip
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        optimizer.nothing  # noqa: B018
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is torch.optim.AdamW
    assert again.param_groups[0]["lr"] == 0.01


def cycle_of(step):
    """Up in 4 steps, down in 4, then a decay by half of the rate every 2 steps."""
    if step <= 8:
        return 0.1 + 0.9 * (step if step <= 4 else 8 - step) / 4
    return 0.1 / (1 + 0.5 * (step - 8) / 2)


def test_one_cycle_rises_falls_and_decays():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    scheduler = OneCycle(
        optimizer, 0.1, 1.0, 0.5, cycle_first_step_size=4, decay_step_size=2,
        cycle_min_mom=0.5, cycle_max_mom=0.9,
    )  # fmt: skip
    rates, momenta = [], []
    for _ in range(14):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([cycle_of(step) for step in range(14)])
    assert momenta[:9] == pytest.approx([0.5, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7, 0.8, 0.9])


def test_one_cycle_goes_in_stairs():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = OneCycle(optimizer, 0.0, 1.0, cycle_first_step_size=4, cycle_first_stair_count=2)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == [0.0, 0.0, 0.5, 0.5, 1.0, 0.5, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="cycle_first_step_size is 0"):
        OneCycle(optimizer, 0.0, 1.0, cycle_first_step_size=0)
