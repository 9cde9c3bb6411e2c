"""Two spellings of one summed loss: that which nobody can see to be a sum is told, once."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch.nn import functional

from penstock.pipelining import PipelineStage, ScheduleGPipe

MICROBATCHES = 4


@pytest.fixture
def step(one_rank):
    """Two steps with a loss; the gradient of the first, and the words of the warnings."""

    def step(loss_fn, **options):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 3)
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=loss_fn, **options)
        x = torch.randn(8, 3)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            schedule.step(x, target=x)
            gradient = module.weight.grad.clone()
            schedule.step(x, target=x)
        return gradient, [str(note.message) for note in notes if "loss_fn" in str(note.message)]

    return step


def test_a_sum_that_nobody_has_said_is_told_once(step):
    whole, notes = step(torch.nn.MSELoss(reduction="sum"))
    assert not notes
    for loss_fn in (
        lambda output, target: functional.mse_loss(output, target, reduction="sum"),
        lambda output, target: (output - target).square().sum(),
    ):
        gradient, notes = step(loss_fn)
        torch.testing.assert_close(gradient * MICROBATCHES, whole)
        assert len(notes) == 1 and "scale_grads=False" in notes[0]
        gradient, notes = step(loss_fn, scale_grads=False)
        torch.testing.assert_close(gradient, whole)
        assert not notes


def test_means_and_sums_that_say_so_are_not_told(step):
    for loss_fn in (
        torch.nn.MSELoss(),
        lambda output, target: (output - target).square().sum() / output.numel(),
        functools.partial(functional.mse_loss, reduction="sum"),
    ):
        assert not step(loss_fn)[1]
