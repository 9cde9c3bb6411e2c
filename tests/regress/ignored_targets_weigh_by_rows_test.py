"""Gradients of a cross entropy whose microbatches ignore different numbers of targets.

Microbatches counted by their rows, so 3 padded rows of 8 in 2 microbatches gave gradients that were
wrong by 0.70.  They count by what the loss is a mean over; where nobody can know that beforehand, a
warning says so.
"""

from __future__ import annotations

import functools
import warnings

import pytest
import ranks
import torch
import torch.distributed as dist

from penstock.pipelining import PipelineStage, ScheduleGPipe

WORLD_SIZE = 2
ROWS, WIDTH, CLASSES = 8, 6, 5
WEIGHT = torch.tensor([0.1, 3.0, 0.7, 1.9, 0.0])


def padded(shape, ignored=-100):
    """Targets of which the first microbatch has many that are ignored, and the second one few."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, CLASSES, shape, generator=generator)
    target.view(ROWS, -1)[:3] = ignored
    target.view(ROWS, -1)[6, 0] = ignored
    return target


def gradients(group, loss_fn, target, unsplit_loss=None, microbatches=2, **options):
    """By parameter of this rank, its gradient in the pipeline and in the unsplit model."""
    torch.manual_seed(0)
    width = CLASSES * (target.shape[1] if target.dim() == 2 and not is_float(target) else 1)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, width)]
    x = torch.randn(ROWS, WIDTH)
    loss = unsplit_loss or loss_fn
    loss(shaped(layers[1](layers[0](x).tanh()), target), target).backward()
    rank = dist.get_rank()
    expected = [each.grad for each in layers[rank].parameters()]
    layers[rank].zero_grad()
    module = torch.nn.Sequential(layers[0], torch.nn.Tanh()) if rank == 0 else Shaped(layers[1])
    stage = PipelineStage(module, rank, WORLD_SIZE, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, microbatches, loss_fn=loss_fn, **options)
    schedule.step(x) if rank == 0 else schedule.step(target=target)
    return [(each.grad, other) for each, other in zip(module.parameters(), expected, strict=True)]


def is_float(target):
    return target.is_floating_point()


def shaped(output, target):
    spread = target.dim() == 2 and not is_float(target)
    return output.view(len(output), CLASSES, -1) if spread else output


class Shaped(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        output = self.linear(x)
        return output if output.shape[1] == CLASSES else output.view(len(x), CLASSES, -1)


def same(pairs):
    for mine, plain in pairs:
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


def check_torch_s_own_losses(group):
    entropy, nll = torch.nn.functional.cross_entropy, torch.nn.NLLLoss
    for loss_fn, ignored in [
        (torch.nn.CrossEntropyLoss(), -100),
        (torch.nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=2), 2),
        (torch.nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), -100),
        (torch.nn.CrossEntropyLoss(reduction="sum"), -100),
        (entropy, -100),
        (functools.partial(entropy, ignore_index=1, weight=WEIGHT), 1),
        (functools.partial(functools.partial(entropy, ignore_index=1), reduction="sum"), 1),
        (nll(ignore_index=0), 0),
        (functools.partial(torch.nn.functional.nll_loss, weight=WEIGHT), -100),
    ]:
        for shape in [(ROWS,), (ROWS, 3)]:
            for microbatches in (2, 3):
                target = padded(shape, ignored)
                same(gradients(group, loss_fn, target, microbatches=microbatches))


def check_probabilities_and_uneven_rows(group):
    target = torch.rand(ROWS, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(1)
    for loss_fn in (torch.nn.CrossEntropyLoss(weight=WEIGHT), torch.nn.BCEWithLogitsLoss()):
        same(gradients(group, loss_fn, target, microbatches=3))


def mine(output, target):
    return torch.nn.functional.cross_entropy(output, target)


def check_other_losses_say_it_or_are_told(group):
    target = padded((ROWS,))
    same(gradients(group, mine, target, loss_weight=lambda each: (each >= 0).sum()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradients(group, mine, target)
        gradients(group, mine, padded((ROWS,)).clamp(0))  # As many targets as rows: it is right.
    told = [str(each.message) for each in caught if "loss_weight" in str(each.message)]
    assert len(told) == dist.get_rank(), told
    assert all("microbatch 0 is a mean over 1 of 4 targets" in each for each in told)


def check_wrong_weights(group):
    with pytest.raises(ValueError, match="loss_weight is for scale_grads None"):
        gradients(group, mine, padded((ROWS,)), loss_weight=len, scale_grads=True)
    with pytest.raises((ValueError, RuntimeError), match="loss_weight gave -1 for microbatch 0"):
        gradients(group, mine, padded((ROWS,)), loss_weight=lambda each: -1)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
