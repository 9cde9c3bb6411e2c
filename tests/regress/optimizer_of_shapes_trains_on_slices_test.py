"""Optimizers that look at whole parameters are refused where replicas update slices.

Adafactor under ZeRO 1 and more trained on flat slices, silently: a loss of 0.902 instead of 0.898.
A pipeline also clipped by the norm of parameters that its optimizer does not have, 57.55 instead of
38.51, and let ranks disagree on whether a tied parameter is updated.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import MICROBATCHES, batches, config, language_model, loss_fn, reference_of

import penstock
from penstock.pipe import PipelineModule

WORLD_SIZE = 2


class Lamb(torch.optim.SGD):
    """Looks at norms of parameters."""

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for each in group["params"]:
                    each -= group["lr"] * each.grad / each.grad.norm()


class MyAdamW(torch.optim.AdamW):
    """Has another name, and AdamW's step."""


def pipeline(make, zero, **more):
    torch.manual_seed(0)
    module = PipelineModule(language_model(), num_stages=1, loss_fn=loss_fn)
    settings = config(zero_optimization={"stage": zero}, **more)
    return penstock.initialize(model=module, optimizer=make, config=settings)[0]


def plain(make, zero, **more):
    torch.manual_seed(0)
    settings = {**config(zero_optimization={"stage": zero}, **more), "train_batch_size": 16}
    return penstock.initialize(
        model=torch.nn.Linear(40, 40),
        optimizer=make,
        config=settings,
    )[0]


def check_who_may_have_slices(group):
    says = {"zero_allow_untested_optimizer": True}
    for make_engine in (pipeline, plain):
        for zero in (1, 2, 3):
            for make, words in [
                (torch.optim.Adafactor, f"Adafactor looks at whole .*stage {zero} gives each of 2"),
                (Lamb, "Lamb may look at whole parameters.*use stage 0"),
            ]:
                with pytest.raises(penstock.Error, match=words) as caught:
                    make_engine(make, zero)
                assert make is torch.optim.Adafactor or "untested" in "".join(caught.value.notes)
                dist.barrier()
            with pytest.raises(penstock.Error, match="Adafactor looks at whole"):
                make_engine(torch.optim.Adafactor, zero, **says)
            dist.barrier()
        for make in (torch.optim.Adafactor, Lamb):
            make_engine(make, 0)
        for make in (MyAdamW, torch.optim.RAdam, torch.optim.SGD):
            make_engine(lambda each, m=make: m(each, lr=0.1), 1)
        make_engine(Lamb, 1, **says)


def check_files_say_it_too(group):
    path = Path(os.environ["STORE"]).with_name(f"config-{dist.get_rank()}.json")
    path.write_text(
        json.dumps(config(zero_optimization={"stage": 1}, zero_allow_untested_optimizer=True))
    )
    penstock.initialize(model=torch.nn.Linear(40, 40), optimizer=Lamb, config=path)


def two_stages(chosen, **more):
    torch.manual_seed(0)
    module = PipelineModule(language_model(), num_stages=2, loss_fn=loss_fn)
    parameters = [each for name, each in module.named_parameters() if chosen(name)]
    return penstock.initialize(
        model=module, model_parameters=parameters, config=config(gradient_clipping=0.05, **more)
    )[0]


def check_the_norm_is_of_what_is_updated(group):
    """Some of its parameters, beside the unsplit model with the same."""

    def chosen(name):
        return "net1" in name or "tied" in name

    engine = two_stages(chosen)
    reference = reference_of(language_model(), clipping=0.05)
    for name, each in reference.model.named_parameters():
        each.requires_grad_(chosen(name))
    for step in range(3):
        data = list(batches(step, [5] * MICROBATCHES))
        reference.step(data)
        engine.train_batch(iter(data))
        assert engine.get_global_grad_norm() == pytest.approx(reference.norm, rel=1e-5)
        reference.compare(engine.module)


def check_tied_parameters_are_updated_everywhere(group):
    words = 'tied parameter "embedding.weight" is updated by the optimizer of rank 1, and not by'
    with pytest.raises(penstock.ConfigError, match=words):
        two_stages(lambda name: "tied" not in name or dist.get_rank() == 1)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
