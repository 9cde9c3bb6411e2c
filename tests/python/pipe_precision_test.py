"""bf16 and fp16 in pipelines: copies of 32 bits, loss scales, steps that all ranks skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import batches, language_model
from pipe_zero_test import (
    MICROBATCHES,
    SCHEDULES,
    engine_of,
    same_for_every_stage,
    train,
    weights_of,
)

BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "loss_scale": 128.0}}


def check_stages_train_to_the_same_bits(group):
    del group
    first, second, third = SCHEDULES
    sweep = [(BF16, first), (FP16, third), (BF16, second), (FP16, first), (BF16, third)]
    for options, schedule in ranks.cases([*sweep, (FP16, second)], quick=2):
        same_for_every_stage(schedule, more=options)


def check_layers_are_cast_and_copies_updated(group):
    del group
    for zero, options in ((0, FP16), (2, BF16), (3, BF16)):
        engine = engine_of(zero, more=options)
        kind = torch.float16 if options is FP16 else torch.bfloat16
        assert {each.dtype for each in engine.module.parameters()} == {kind}
        updated = [each for of in engine.optimizer.param_groups for each in of["params"]]
        assert {each.dtype for each in updated} == {torch.float32}
        sizes = torch.tensor(
            [
                sum(each.numel() for each in updated),
                sum(each.numel() for each in engine.module.parameters()),
            ]
        )
        dist.all_reduce(sizes)
        shares = 1 if zero == 0 else engine.dp_world_size
        assert sizes[0] * shares == sizes[1]


def check_small_updates_are_not_lost(group):
    del group
    more = {**BF16, "optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}
    engine = engine_of(1, layers=language_model, more={**more, "gradient_clipping": 0.0})
    before = {name: each.detach().clone() for name, each in engine.module.named_parameters()}
    losses = [loss for loss, _ in train(engine, range(40))]
    assert min(losses[-4:]) < losses[0]
    masters = torch.cat([each.flatten() for each in engine._update.masters])
    assert not torch.equal(masters.bfloat16().float(), masters)  # More than 16 bits are kept.
    changed = [not torch.equal(each, before[n]) for n, each in engine.module.named_parameters()]
    assert all(changed)


def overflow(engine, step):
    """A step whose gradients overflow on one rank."""
    factor = 1e6 if engine.is_last_stage() and engine.dp_rank == 1 else 1.0
    loss = engine.module.loss_fn
    engine.module.loss_fn = lambda output, labels: loss(output.float(), labels) * factor
    engine.train_batch(batches(step + engine.dp_rank, [5] * MICROBATCHES))
    engine.module.loss_fn = loss


def check_an_overflow_on_one_rank_skips_the_step_on_all(group):
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}}
    for zero in range(4):
        engine = engine_of(zero, SCHEDULES[2], more=fp16)
        train(engine, range(1))
        assert engine.was_step_applied() and engine.loss_scale == 16
        masters = [each.clone() for each in engine._update.masters]
        rate = engine.get_lr()
        overflow(engine, 7)
        assert not engine.was_step_applied() and engine.get_lr() == rate
        assert (engine.skipped_steps, engine.global_steps, engine.loss_scale) == (1, 2, 8)
        now = engine._update.masters
        assert all(torch.equal(a, b) for a, b in zip(masters, now, strict=True))
        train(engine, range(3, 4))
        assert engine.was_step_applied() and engine.skipped_steps == 1


def check_float_weights_of_a_checkpoint_go_on_in_bf16(group):
    del group
    folder = Path(os.environ["STORE"]).with_name(f"precision-{dist.get_world_size()}")
    engine = engine_of(1)
    train(engine, range(2))
    engine.save_checkpoint(folder)
    short = engine_of(2, more=BF16)
    short.load_checkpoint(folder)
    losses = [loss for loss, _ in train(short, range(2, 6))]
    expected = [loss for loss, _ in train(engine, range(2, 6))]
    assert losses == pytest.approx(expected, rel=0.05)


SCALED = {
    "fp16": {"enabled": True, "initial_scale_power": 6, "hysteresis": 2, "loss_scale_window": 2},
}
COURSE = "x..|.x.x...x..."  # x overflows; a checkpoint where the bar is.


def run_course(engine, course, first):
    """By step, the loss scale after it and whether it was taken."""
    found = []
    for step, kind in enumerate(course, first):
        if kind == "x":
            overflow(engine, step)
        else:
            train(engine, [step])
        found.append((engine.loss_scale, engine.was_step_applied()))
    return found


def checkpoint_in_a_course(zero, name):
    """An engine that has saved a checkpoint in front of the bar, and the folder."""
    folder = Path(os.environ["STORE"]).with_name(f"{name}-{dist.get_world_size()}-{zero}")
    engine = engine_of(zero, more=SCALED)
    run_course(engine, COURSE.split("|")[0], 0)
    engine.save_checkpoint(folder)
    return engine, folder


def check_a_dynamic_loss_scale_goes_on_from_a_checkpoint(group):
    del group
    before, after = COURSE.split("|")
    for zero in range(4):
        engine, folder = checkpoint_in_a_course(zero, "scale")
        expected = run_course(engine, after, len(before))
        assert len({scale for scale, _ in expected}) > 2  # It falls, and it rises.
        again = engine_of(zero, more=SCALED)
        again.load_checkpoint(folder)
        assert run_course(again, after, len(before)) == expected
        assert weights_of(again) == weights_of(engine)
        assert again.skipped_steps == engine.skipped_steps == COURSE.count("x")
        pairs = zip(again._update.masters, engine._update.masters, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def check_a_checkpoint_without_a_loss_scale_begins_as_configured(group):
    del group
    fixed = engine_of(1, more=FP16)
    folder = Path(os.environ["STORE"]).with_name(f"scaleless-{dist.get_world_size()}")
    fixed.save_checkpoint(folder)
    older = engine_of(1, more=SCALED)
    older.load_checkpoint(folder)
    assert older.loss_scale == 64
    overflow(older, 90)
    assert older.loss_scale == 64  # Two are let pass, not one.
    _, folder = checkpoint_in_a_course(1, "scaled")
    fixed.load_checkpoint(folder)
    assert fixed.loss_scale == 128


test_two = ranks.tests_of(__file__, 2, is_long=True)
test_four = ranks.tests_of(__file__, 4)
test_four_all = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
