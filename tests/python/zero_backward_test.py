"""Backwards that a script runs itself: what they add is what engine.backward() would have added."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from zero_models import WIDTH, initialize, loss_of, mixed, same_state, words_of

import penstock


def _trained(stage, backward, options=None, model=None):
    """The parameters after three microbatches, in which `backward` gets engine, loss, number."""
    engine, _ = initialize(mixed() if model is None else model, stage, options=options)
    for number in range(3):
        inputs, labels = words_of(number, dist.get_rank())
        backward(engine, loss_of(engine(inputs, number), labels), number)
        engine.step()
        assert engine.was_step_applied()
    return engine.module_state_dict()


# Adam's steps would not tell a part of the gradient from the whole.
_PLAIN = {"optimizer": {"type": "SGD", "params": {"lr": 0.5}}}


def _by_engine(engine, loss, number):
    engine.backward(loss)


def _same(found, expected):
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)


def check_several_losses_and_backwards_of_one_step(group):
    def twice(engine, loss, number):
        (0.25 * loss).backward(retain_graph=True)
        (0.75 * loss).backward()

    def two_forwards(engine, loss, number):
        inputs, labels = words_of(number, dist.get_rank())
        again = loss_of(engine(inputs, number), labels)
        (0.5 * loss + 0.5 * again).backward()

    def of_outputs(engine, loss, number):
        inputs, labels = words_of(number, dist.get_rank())
        outputs = engine(inputs, number)
        (gradient,) = torch.autograd.grad(loss_of(outputs, labels), outputs, retain_graph=True)
        outputs.backward(gradient)

    def then_the_engines(engine, loss, number):
        (0.25 * loss).backward(retain_graph=True)
        engine.backward(0.75 * loss)

    for stage in range(4):
        expected = _trained(stage, _by_engine, _PLAIN)
        for backward in (twice, two_forwards, of_outputs, then_the_engines):
            _same(_trained(stage, backward, _PLAIN), expected)


def check_backwards_after_the_last_one_of_a_step_add(group):
    def by_engine(engine, loss, number):
        engine.backward(0.25 * loss, retain_graph=True)
        engine.backward(0.75 * loss)

    def by_the_script(engine, loss, number):
        engine.backward(0.25 * loss, retain_graph=True)
        (0.75 * loss).backward()

    def thrice(engine, loss, number):
        engine.backward(0.5 * loss, retain_graph=True)
        engine.backward(0.25 * loss, retain_graph=True)
        (0.25 * loss).backward()

    def after_the_sum(engine, loss, number):
        (0.5 * loss).backward(retain_graph=True)
        engine.allreduce_gradients()
        engine.backward(0.5 * loss)

    for stage in range(4):
        expected = _trained(stage, _by_engine, _PLAIN)
        for backward in (by_engine, by_the_script, thrice, after_the_sum):
            _same(_trained(stage, backward, _PLAIN), expected)


def check_a_loss_that_is_no_output(group):
    class HasAuxiliary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
            self.auxiliary = None

        def forward(self, x):
            x = self.first(x)
            self.auxiliary = x.square().mean()
            return self.second(x)

    def model():
        torch.manual_seed(3)
        return HasAuxiliary()

    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    states = []
    for is_engines in (True, False):
        for stage in range(4):
            engine, _ = initialize(model(), stage)
            for _ in range(2):
                loss = engine(x).square().mean() + engine.module.auxiliary
                engine.backward(loss) if is_engines else loss.backward()
                engine.step()
            states.append(engine.module_state_dict())
            _same(states[-1], states[0])
    for stage in range(3):  # And a model that is called without its engine.
        engine, _ = initialize(model(), stage)
        for _ in range(2):
            (engine.module(x).square().mean() + engine.module.auxiliary).backward()
            engine.step()
        _same(engine.module_state_dict(), states[0])


def check_a_checkpoint_around_the_engine(group):
    from torch.utils.checkpoint import checkpoint

    def trained(stage, use_reentrant):
        engine, _ = initialize(mixed(), stage)
        for number in range(3):
            inputs, labels = words_of(number, dist.get_rank())
            if use_reentrant is None:
                outputs = engine(inputs, number)
            else:
                start = torch.zeros((), requires_grad=True)
                outputs = checkpoint(
                    lambda zero, i, n: engine(i, n) + zero,
                    *(start, inputs, number),
                    use_reentrant=use_reentrant,
                )
            loss_of(outputs, labels).backward()
            engine.step()
        return engine.module_state_dict()

    for stage in range(4):
        for use_reentrant in (False, True):
            _same(trained(stage, use_reentrant), trained(stage, None))


def check_two_engines_in_one_graph(group):
    def model(seed):
        torch.manual_seed(seed)
        return torch.nn.Linear(WIDTH, WIDTH)

    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    states = []
    for is_engines in (False, True):
        for stage in range(4):
            first, _ = initialize(model(1), stage)
            second, _ = initialize(model(2), stage)
            for _ in range(2):
                loss = second(first(x).tanh()).square().mean()
                second.backward(loss) if is_engines else loss.backward()
                first.step()
                second.step()
            states.append((first.module_state_dict(), second.module_state_dict()))
            for found, expected in zip(states[-1], states[0], strict=True):
                _same(found, expected)
    assert not torch.equal(states[0][0]["weight"], model(1).weight)


def check_another_engines_backward_adds_to_sums(group):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    for stage in range(4):
        states = []
        for is_one in (True, False):
            torch.manual_seed(1)
            modules = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
            first, second = (initialize(each, stage, options=_PLAIN)[0] for each in modules)
            outputs = first(x).tanh()
            auxiliary, loss = outputs.mean(), second(outputs).square().mean()
            if is_one:
                second.backward(auxiliary + loss)
            else:
                first.backward(auxiliary, retain_graph=True)
                second.backward(loss)
            first.step()
            second.step()
            states.append((first.module_state_dict(), second.module_state_dict()))
        for found, expected in zip(*states, strict=True):
            _same(found, expected)


def check_sums_of_shared_parameters_are_not_added_to(group):
    module = torch.nn.Linear(WIDTH, WIDTH)
    first, second = (initialize(module, 0)[0] for _ in range(2))
    x = torch.randn(4, WIDTH)
    first.backward(first(x).mean())
    with pytest.raises(penstock.Error, match=r"no output of this engine's .*call step\(\) first"):
        second.backward(second(x).mean())


def check_gradients_that_are_asked_for_are_torchs(group):
    model = mixed()
    inputs, labels = words_of(0, dist.get_rank())
    plain = torch.autograd.grad(loss_of(model(inputs, 0), labels), model.norm.weight)
    engine, _ = initialize(model, 0, options={"accumulation": 4})
    found = torch.autograd.grad(loss_of(engine(inputs, 0), labels), model.norm.weight)
    assert torch.equal(found[0], plain[0])


def check_fp16_needs_a_scaled_loss(group):
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 1}}
    for stage in range(4):
        options = {"options": fp16}
        expected = _trained(stage, _by_engine, **options)
        found = _trained(stage, lambda engine, loss, _: engine.scale(loss).backward(), **options)
        same_state(found, expected)
        engine, _ = initialize(mixed(), stage, **options)
        inputs, labels = words_of(0, dist.get_rank())
        loss = loss_of(engine(inputs, 0), labels)
        with pytest.raises(penstock.Error, match=r"fp16 needs losses .* engine.scale\(loss\)"):
            loss.backward()
        engine.zero_grad()
    loss = loss_of(engine(inputs, 0), labels)
    with pytest.raises(penstock.Error, match=r"engine.backward\(\) scales the loss itself"):
        engine.backward(engine.scale(loss))


def check_a_scale_of_the_step_before(group):
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 1}}
    engine, _ = initialize(mixed(), 0, options=fp16)
    inputs, labels = words_of(0, dist.get_rank())
    early = engine.scale(loss_of(engine(inputs, 0), labels))
    for number in range(2):
        engine.scale(loss_of(engine(inputs, number), labels)).backward()
        engine.step()
    with pytest.raises(penstock.Error, match=r"was multiplied by 256, and the loss scale is"):
        early.backward()


def check_one_that_fails(group):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("not today")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

        def forward(self, x, fails):
            x = self.first(x)
            return self.second(Fails.apply(x) if fails else x)

    def model():
        torch.manual_seed(3)
        return Model()

    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    for stage in range(4):
        states = []
        for fails in (True, False):
            engine, _ = initialize(model(), stage)
            if fails:
                with pytest.raises(ValueError, match="not today"):
                    engine(x, True).sum().backward()
                engine.zero_grad()
            engine(x, False).sum().backward()
            engine.step()
            states.append(engine.module_state_dict())
        same_state(*states)
    engine, _ = initialize(model(), 0)
    with pytest.raises(ValueError, match="not today"):
        engine(x, True).sum().backward()
    dist.barrier()  # what this rank says would end another's initialize(), else
    with pytest.raises(penstock.Error, match="has failed after it had begun"):
        engine.step()


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))

if __name__ == "__main__":
    ranks.main(globals())
