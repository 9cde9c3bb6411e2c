"""What a script sees and adds inside a backward of an engine is what it is with DeepSpeed.

The table's factors were measured of DeepSpeed 0.19.8 on torch 2.13 (2026-11-26), two replicas on
the CPU, ZeRO 0 to 3.  A seen gradient is that of this rank's own loss times the factor; what is
added inside counts so many times its mean over microbatches and replicas.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import penstock
from penstock.pipe import PipelineModule

WORLD_SIZE, SCALE = 2, 8.0
WAYS = ("engine.backward(loss)", "loss.backward()")
# Way: seen, and how often an addition counts, by the microbatches of a step.
TABLE = {
    WAYS[0]: {1: (1.0, 1.0), 2: (1 / 2, 2.0), 3: (1 / 3, 3.0)},
    WAYS[1]: {1: (1.0, 1.0), 2: (1 / 2, 2.0), 3: (1 / 3, 3.0)},
}
TYPES = {None: torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CLOSE = {None: 1e-5, "bf16": 0.04, "fp16": 0.01}


class Adds(torch.autograd.Function):
    """Its second input gets the gradient 1, as if it were added to the loss."""

    @staticmethod
    def forward(ctx, carrier, auxiliary):
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.ones((), dtype=gradient.dtype)


class Model(nn.Module):
    """Keeps a hidden layer with its gradient, and adds the gradient of a balance loss."""

    def __init__(self, returns_loss=False):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.router = nn.Linear(6, 1)
        self.returns_loss = returns_loss
        self.hidden, self.hooked = None, []

    def balance(self, x):
        return self.router(x.detach()).square().mean()

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if h.requires_grad:
            h.retain_grad()
            h.register_hook(lambda gradient: self.hooked.append(gradient.clone()))
            h = Adds.apply(h, self.balance(x))
            self.hidden = h if h.is_leaf else self.hidden
        output = self.last(h)
        return (output.square().mean(), output) if self.returns_loss else output


def plain_gradients(model, x):
    """Of the loss alone: those of the input and of the parameters, and the hidden layer's."""
    plain = copy.deepcopy(model).float()
    x = x.clone().requires_grad_(True)
    h = torch.tanh(plain.first(x))
    h.retain_grad()
    plain.last(h).square().mean().backward()
    return x.grad, h.grad, {name: each.grad for name, each in plain.named_parameters()}


def near(found, expected, kind):
    bound = CLOSE[kind] * expected.abs().max() + 2e-7  # Of weights below 2, whose difference it is.
    assert (found.float() - expected).abs().max() <= bound, (found / expected, kind)


def config(stage, kind, microbatches):
    fp16 = {"initial_scale_power": 3, "hysteresis": 1} if kind == "fp16" else {}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": microbatches,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **({kind: {"enabled": True, **fp16}} if kind else {}),
    }


def whole(module):
    with penstock.zero.GatheredParameters(module.parameters()):
        return {name: each.detach().float().clone() for name, each in module.named_parameters()}


def data_of(microbatches):
    return torch.randn(
        microbatches, WORLD_SIZE, 4, 6, generator=torch.Generator().manual_seed(microbatches)
    )


def loss_of(output):
    """The half of it from the loss that a model returns, where it does."""
    if isinstance(output, tuple):
        return 0.5 * output[0].float() + 0.5 * output[1].float().square().mean()
    return output.float().square().mean()


def check_engines(group):
    for stage, kind, way in itertools.product(range(4), TYPES, WAYS):
        for microbatches, returns_loss in itertools.product((1, 2, 3), (False, True)):
            if kind and (microbatches == 3 or returns_loss):
                continue
            one_engine(stage, kind, way, microbatches, returns_loss)


def one_engine(stage, kind, way, microbatches, returns_loss):
    torch.manual_seed(0)
    model = Model(returns_loss)
    plain = copy.deepcopy(model)
    scale = SCALE if kind == "fp16" else 1.0
    engine, *_ = penstock.initialize(model=model, config=config(stage, kind, microbatches))
    before = whole(engine.module)
    seen, times = TABLE[way][microbatches]
    data, mean = data_of(microbatches), {}
    for micro in range(microbatches):
        x = data[micro, dist.get_rank()].to(TYPES[kind]).requires_grad_(True)
        engine.module.hooked.clear()
        loss = loss_of(engine(x))
        if way == WAYS[0]:
            engine.backward(loss)
        else:
            engine.scale(loss).backward()
        of_input, of_hidden, _ = plain_gradients(plain, x.detach().float())
        near(x.grad, seen * scale * of_input, kind)
        near(engine.module.hooked[0], seen * scale * of_hidden, kind)
        engine.step()
    if kind:
        return  # Parameters of 16 bits are too coarse to say what a step has changed.
    for x in data.flatten(0, 1):
        for name, gradient in plain_gradients(plain, x)[2].items():
            if gradient is not None:
                mean[name] = mean.get(name, 0) + gradient / (microbatches * WORLD_SIZE)
    balance = sum(plain.balance(x) for x in data.flatten(0, 1)) / (microbatches * WORLD_SIZE)
    of_router = torch.autograd.grad(balance, list(plain.router.parameters()))
    for name, gradient in zip(("router.weight", "router.bias"), of_router, strict=True):
        mean[name] = times * gradient / scale  # Nobody multiplies what is added inside.
    after = whole(engine.module)
    for name, gradient in mean.items():
        near(before[name] - after[name], gradient, kind)


def check_a_loss_of_a_part_of_the_outputs(group):
    """Of (loss, logits), of which one is made of the other, a script may use any."""
    parts = [lambda o: o[0], lambda o: o[1].square().mean(), lambda o: o[0] + o[1].mean()]
    for stage, part in itertools.product(range(4), parts):
        states = []
        for is_engines in (True, False):
            torch.manual_seed(0)
            engine, *_ = penstock.initialize(model=Model(True), config=config(stage, None, 2))
            for x in data_of(2)[:, dist.get_rank()]:
                loss = part(engine(x))
                engine.backward(loss) if is_engines else loss.backward()
                engine.step()
            states.append(whole(engine.module))
        for name, expected in states[0].items():
            torch.testing.assert_close(states[1][name], expected)


def check_several_backwards_in_a_microbatch(group):
    for stage, way in itertools.product(range(4), WAYS):
        engine, *_ = penstock.initialize(model=Model(), config=config(stage, None, 2))
        for x in data_of(2)[:, dist.get_rank()]:
            x = x.clone().requires_grad_(True)
            output = engine(x)
            for share in (0.25, 0.75):
                loss, keeps = share * output.square().mean(), share < 0.5
                if way == WAYS[0]:
                    engine.backward(loss, retain_graph=keeps)
                else:
                    loss.backward(retain_graph=keeps)
            of_input, *_ = plain_gradients(whole_model(engine), x.detach())
            near(x.grad, of_input / 2, None)
            engine.step()


def whole_model(engine):
    with penstock.zero.GatheredParameters(engine.module.parameters()):
        return copy.deepcopy(engine.module)


def check_a_backward_around_the_outputs(group):
    """It is undivided, as with DeepSpeed, which does not know of it; alone it is refused."""
    engine, *_ = penstock.initialize(model=Model(), config=config(1, None, 2))
    with pytest.raises(RuntimeError, match=r"through no output .* by the 2 microbatches"):
        engine.module(data_of(2)[0, 0]).sum().backward()
    engine.zero_grad()


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(6, 6), []

    def forward(self, x):
        h = torch.tanh(self.linear(x))
        if h.requires_grad:
            h.register_hook(lambda gradient: self.seen.append(gradient.clone()))
        return h


def check_pipeline_engines(group):
    for stage, kind, microbatches in itertools.product((0, 1, 3), (None, "fp16"), (1, 3)):
        for stages, schedule in ((1, "1f1b"), (2, "1f1b"), (2, "zb_h1")):
            one_pipeline(stage, kind, microbatches, stages, schedule)


def one_pipeline(stage, kind, microbatches, stages, schedule):
    torch.manual_seed(0)
    layers = [Hidden(), Hidden()]
    plain = copy.deepcopy(layers)
    module = PipelineModule(
        layers,
        num_stages=stages,
        loss_fn=lambda output, y: (output.float() - y).square().mean(),
        schedule=schedule,
    )
    engine, *_ = penstock.initialize(model=module, config=config(stage, kind, microbatches))
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(2, WORLD_SIZE, microbatches, 4, 6, generator=generator)[:, engine.dp_rank]
    engine.train_batch(iter(list(zip(x.to(TYPES[kind]), y, strict=True))))
    scale = SCALE if kind == "fp16" else 1.0
    here = [i for i in range(2) if stages == 1 or i == engine.stage_id]
    for micro in range(microbatches):
        for each in plain:
            each.seen.clear()
        (plain[1](plain[0](x[micro])) - y[micro]).square().mean().backward()
        for i in here:
            near(layers[i].seen[micro], plain[i].seen[0] * scale / microbatches, kind)


test_engines = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
