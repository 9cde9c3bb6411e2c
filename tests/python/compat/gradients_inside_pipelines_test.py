"""What a stage sees and adds inside a backward is what it is in torch's own schedules.

Balance losses that an autograd Function adds are compared with the live torch, with each
scale_grads, and what hooks see with the unsplit model, in every schedule.
"""

from __future__ import annotations

import copy
import importlib
import itertools

import ranks
import torch
import torch.distributed as dist
from torch import nn

WORLD_SIZE, WIDTH, MICROBATCHES = 2, 6, 4
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
OURS, TORCH = "penstock.pipelining", "torch.distributed.pipelining"


class Adds(torch.autograd.Function):
    """Its second input gets the gradient 1, as if it were added to the loss."""

    @staticmethod
    def forward(ctx, carrier, auxiliary):
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.ones((), dtype=gradient.dtype)


class Layer(nn.Module):
    def __init__(self, adds):
        super().__init__()
        self.first, self.router, self.adds = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), adds
        self.hooked, self.kept = [], []

    def forward(self, x, is_plain=False):
        h = torch.tanh(self.first(x))
        if h.requires_grad and not is_plain:
            h.register_hook(lambda gradient: self.hooked.append(gradient.clone()))
            h.retain_grad()
            self.kept.append(h)
        balance = 0.1 * self.router(h).softmax(-1).mean(0).square().sum()
        if is_plain:
            return h, balance
        return Adds.apply(h, balance) if self.adds else h


def layers_of(adds, count):
    torch.manual_seed(0)
    return [Layer(adds) for _ in range(count)]


def run(library, name, layers, options, batch=16, before=None):
    """One step of this rank's stages; its layers, by stage."""
    pipelining = importlib.import_module(library)
    kind = importlib.import_module(f"{library}.schedules").get_schedule_class(name)
    rank, count = dist.get_rank(), len(layers)
    here = [rank, count - 1 - rank] if name in V_SHAPED else range(rank, count, WORLD_SIZE)
    mine = {i: copy.deepcopy(layers[i]) for i in here}
    for parameter in [each for layer in mine.values() for each in layer.parameters()]:
        parameter.grad = None if before is None else torch.full_like(parameter, before)
    stages = [
        pipelining.PipelineStage(mine[i], i, count, torch.device("cpu"), group=dist.group.WORLD)
        for i in here
    ]
    is_single = name in ("GPipe", "1F1B")
    schedule = kind(
        stages[0] if is_single else stages, MICROBATCHES, loss_fn=nn.MSELoss(), **options
    )
    x, y = data(batch)
    more = {"target": y, "losses": []} if count - 1 in mine else {}
    schedule.step(*([x] if 0 in mine else []), **more)
    return mine


def data(batch):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, batch, WIDTH, generator=generator).unbind()


def plain(layers, adds, divisor):
    """The gradients of all microbatches' losses, divided; and of each, those of hidden layers."""
    layers = copy.deepcopy(layers)
    hidden = [[] for _ in layers]
    for a, b in zip(*(each.chunk(MICROBATCHES) for each in data(16)), strict=True):
        total = 0.0
        for number, layer in enumerate(layers):
            a, balance = layer(a, is_plain=True)
            a.retain_grad()
            hidden[number].append(a)
            total = total + balance * adds
        (nn.functional.mse_loss(a, b) + total).backward()
    for layer in layers:
        for parameter in layer.parameters():
            parameter.grad = None if parameter.grad is None else parameter.grad / divisor
    return layers, [[each.grad for each in of_layer] for of_layer in hidden]


def same_gradients(found, expected):
    for (name, one), (_, other) in zip(
        found.named_parameters(), expected.named_parameters(), strict=True
    ):
        zero = torch.zeros_like(one)
        torch.testing.assert_close(
            zero if one.grad is None else one.grad,
            zero if other.grad is None else other.grad,
            rtol=1e-4,
            atol=1e-7,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def check_beside_torch(group):
    cases = itertools.product(
        ("GPipe", "1F1B", "Interleaved1F1B"), ({}, {"scale_grads": True}, {"scale_grads": False})
    )
    for (name, options), adds in itertools.product(cases, (False, True)):
        layers = layers_of(adds, 4 if name == "Interleaved1F1B" else 2)
        ours, torchs = (run(each, name, layers, options) for each in (OURS, TORCH))
        for number, mine in ours.items():
            same_gradients(mine, torchs[number])


def check_beside_the_unsplit_model(group):
    names = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", *V_SHAPED)
    for name, (options, divisor), adds in itertools.product(
        names, (({}, 4), ({"scale_grads": True}, 4), ({"scale_grads": False}, 1)), (False, True)
    ):
        layers = layers_of(adds, 2 if name in ("GPipe", "1F1B") else 4)
        expected, hidden = plain(layers, adds, divisor)
        for number, mine in run(OURS, name, layers, options).items():
            same_gradients(mine, expected[number])
            of_plain = hidden[number]
            for gradient in mine.hooked:
                least = min((gradient - each).abs().max() for each in of_plain)
                assert least < 1e-6, (name, options, number)


def check_what_was_there_before_is_not_divided(group):
    layers = layers_of(True, 2)
    expected, _ = plain(layers, True, MICROBATCHES)
    for number, mine in run(OURS, "1F1B", layers, {}, before=1.0).items():
        for parameter in mine.parameters():
            parameter.grad -= 1
        same_gradients(mine, expected[number])


def check_uneven_microbatches(group):
    """What is added counts alike for each microbatch, whatever the losses count."""
    layers = layers_of(True, 2)
    mine = run(OURS, "1F1B", layers, {}, batch=10)
    plains = copy.deepcopy(layers)
    for part in data(10)[0].tensor_split(MICROBATCHES):
        for layer in plains:
            part, balance = layer(part.detach(), is_plain=True)
            (balance / MICROBATCHES).backward()
    for number, layer in mine.items():
        torch.testing.assert_close(layer.router.weight.grad, plains[number].router.weight.grad)


test_beside_others = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
