"""Optimizer states and parameters in files, from Python: the bits of those in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_zero_test import engine_of, train, weights_of
from zero_models import config, initialize, loss_of, mixed, same_state, words_of
from zero_models import train as train_plain

import penstock
from penstock._engines.update import update as _update

_update._ELEMENTS_AT_ONCE = 300  # So that the small models here have many turns.

BF16 = {"bf16": {"enabled": True}}
SCHEDULE = {"name": "interleaved_1f1b", "stages_per_rank": 2}
OPTIMIZERS = (
    {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}},
    {"optimizer": {"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}}},
)


class Sign(torch.optim.Optimizer):
    """An optimizer of a script's own: the sign of a mean of gradients."""

    def __init__(self, params, lr=0.003):
        super().__init__(params, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["mean"] = torch.zeros_like(each)
                    state["steps"] = 0
                state["steps"] += 1
                state["mean"].lerp_(each.grad, 0.1)
                each.sub_(state["mean"].sign(), alpha=group["lr"] / state["steps"])


def folder_of(name):
    folder = Path(os.environ["STORE"]).with_name(f"offload-{name}-{dist.get_rank()}")
    folder.mkdir(exist_ok=True)
    return str(folder)


def in_files(stage, folder):
    offload = {"offload_optimizer": {"device": "nvme", "nvme_path": folder}}
    if stage == 3:
        offload["offload_param"] = {"device": "nvme", "nvme_path": folder}
    return offload


def floats_of(engine, has_masters):
    """What is in a file: states, and copies of short parameters."""
    masters = engine._update.masters
    found = sum(each.numel() for each in masters) if has_masters else 0
    for each in masters:
        states = engine.optimizer.state.get(each, {}).values()
        found += sum(x.numel() for x in states if torch.is_tensor(x) and x.shape == each.shape)
    return found


def run_pipe(stage, folder, more):
    """What a pipeline trains to; a checkpoint of step 3, taken up by a new engine."""
    sharing = {"stage": stage, "reduce_bucket_size": 700}
    if stage == 3:
        sharing |= {"stage3_param_persistence_threshold": 72, "stage3_max_live_parameters": 2000}
    if folder is not None:
        sharing |= in_files(stage, folder)
    more = {**more, "zero_optimization": sharing}
    engine = engine_of(stage, SCHEDULE, more=more)
    found = train(engine, range(3))
    saved = Path(os.environ["STORE"]).with_name(f"saved-{stage}-{folder is None}")
    engine.save_checkpoint(saved)
    again = engine_of(stage, SCHEDULE, more=more)
    again.load_checkpoint(saved)
    assert train(again, range(3, 5)) == train(engine, range(3, 5))
    return found, weights_of(again), again


def check_pipelines_train_to_the_bits_of_memory(group):
    del group
    sweep = [(3, BF16 | OPTIMIZERS[0]), (2, OPTIMIZERS[1]), (0, BF16 | OPTIMIZERS[0])]
    sweep += [(1, OPTIMIZERS[0]), (3, OPTIMIZERS[1])]
    for stage, more in ranks.cases(sweep, quick=2):
        *expected, _ = run_pipe(stage, None, more)
        *found, engine = run_pipe(stage, folder_of("pipe"), more)
        assert found == expected, (stage, more)
        assert engine._update._update.file_bytes >= 4 * floats_of(engine, "bf16" in more) > 0
        for each in engine._update.masters:
            for name, state in engine.optimizer.state.get(each, {}).items():
                if name != "step":  # In the file, and nowhere else.
                    assert any(state is kept for kept in engine._update._kept.values())


def check_an_optimizer_of_ones_own(group):
    """Plain modules: any optimizer, any stage, and one rank has pieces in a file, too."""
    found = {}
    more = {"zero_allow_untested_optimizer": True, **BF16, "accumulation": 2}
    for stage, is_in_files in ((3, False), (3, True), (1, True)):
        folder = folder_of("plain") if is_in_files else None
        zero = {} if folder is None else in_files(stage, folder)
        model = mixed()
        optimizer = Sign(model.parameters())
        engine, _ = initialize(
            model,
            stage,
            options={**more, "zero_optimization": config(stage)["zero_optimization"] | zero},
            optimizer=optimizer,
        )
        found[stage, is_in_files] = train_plain(engine, 4), engine.module_state_dict()
        elements = sum(each.numel() for each in engine._update.masters)
        has_turns = is_in_files and elements > _update._ELEMENTS_AT_ONCE
        assert (optimizer.calls > 4) == has_turns, (optimizer.calls, elements)
        assert optimizer.param_groups[0]["count"] == 4
        if is_in_files:
            assert engine._update._update.file_bytes >= 4 * floats_of(engine, True)
    expected = found[3, False]
    for each in found.values():
        assert each[0] == expected[0]
        same_state(each[1], expected[1])
    del group


def norm_of_float_sums(microbatches):
    """Of a plain loop whose bf16 gradients are added in float."""
    model, sums = mixed().bfloat16(), {}
    for micro in range(microbatches):
        inputs, labels = words_of(micro, 0)
        loss = loss_of(model(inputs, 0), labels)
        loss.backward(torch.full_like(loss, 1 / microbatches))
        for name, each in model.named_parameters():
            if each.grad is not None:
                sums[name] = sums.get(name, 0.0) + each.grad.float()
                each.grad = None
    return torch.cat([each.flatten() for each in sums.values()]).double().norm().item()


def check_gradients_are_added_in_float(group):
    """grad_accum_dtype."""
    norms = {}
    for name, more in (
        ("bf16", BF16),
        ("float", {**BF16, "data_types": {"grad_accum_dtype": "fp32"}}),
    ):
        for stage in (0, 1, 3):
            engine, _ = initialize(mixed(), stage, options={**more, "accumulation": 16})
            found = train_plain(engine, 1)[1][0]
            assert norms.setdefault(name, found) == found, (name, stage)
    assert norms["float"] != norms["bf16"]
    if group.size() == 1:
        expected = norm_of_float_sums(16)
        assert norms["float"] == pytest.approx(expected, rel=1e-12)
        assert norms["bf16"] != pytest.approx(expected, rel=1e-5)


def check_optimizers_of_all_parameters_are_refused(group):
    """Some parameters are updated after others."""
    del group
    model = mixed()
    zero = {"stage": 0, **in_files(0, folder_of("refused"))}
    for optimizer, name in ((torch.optim.LBFGS, "LBFGS"), (Sign, "Sign")):
        with pytest.raises(penstock.ConfigError, match=f"{name}.*all parameters together"):
            initialize(
                model,
                0,
                options={"zero_optimization": zero},
                optimizer=optimizer(model.parameters()),
            )
    zero |= {"stage": 3, **in_files(3, folder_of("refused"))}
    options = {"zero_optimization": zero}
    with pytest.raises(penstock.ConfigError, match="is compiled"):
        initialize(torch.compile(mixed()), 3, options=options)


def check_a_failed_accumulation_leaves_no_sum(group):
    """zero_grad() gives up what is added in float, too."""
    del group
    more = {**BF16, "data_types": {"grad_accum_dtype": "fp32"}, "accumulation": 2}
    norms = []
    for begins_twice in (False, True):
        engine, _ = initialize(mixed(), 1, options=more)
        if begins_twice:
            inputs, labels = words_of(77, dist.get_rank())
            engine.backward(loss_of(engine(inputs, 0), labels))
            engine.zero_grad()
        norms.append(train_plain(engine, 1)[1])
    assert norms[0] == norms[1]


def check_a_scripts_own_backward_adds_in_float(group):
    del group
    more = {**BF16, "data_types": {"grad_accum_dtype": "fp32"}, "accumulation": 8}
    norms = []
    for is_own in (False, True):
        engine, _ = initialize(mixed(), 2, options=more)
        for micro in range(8):
            inputs, labels = words_of(micro, dist.get_rank())
            loss = loss_of(engine(inputs, 0), labels)
            loss.backward() if is_own else engine.backward(loss)
            engine.step()
        norms.append(engine.get_global_grad_norm())
    assert norms[0] == norms[1]


def check_a_folder_that_is_not_there_ends_all_ranks(group):
    """Also those that have theirs."""
    is_last = dist.get_rank() == group.size() - 1
    folder = "/nowhere/at/all" if is_last else folder_of("there")
    with pytest.raises(penstock.Error, match="/nowhere/at/all"):
        engine, _ = initialize(
            mixed(), 2, options={"zero_optimization": {"stage": 2, **in_files(2, folder)}}
        )
        train_plain(engine, 1)


test_one = ranks.tests_of(__file__, 1)
test_four = ranks.tests_of(__file__, 4)
test_two_all = ranks.tests_of(__file__, 2, is_long=True)
test_four_all = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
