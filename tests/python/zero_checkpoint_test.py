"""Checkpoints of penstock.initialize()'s engine for any module: what goes on, and from where."""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from zero_models import WIDTH, initialize, loss_of, mixed, same_state, train, words_of

import penstock

WORLD_SIZE = 2
COURSE = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}}
BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 18, "loss_scale_window": 2}}


def place(name):
    return Path(os.environ["STORE"]).with_name(name)


def state_of(engine):
    """All that a step depends on here, as values that can be compared."""
    weights = {name: each.tolist() for name, each in engine.module_state_dict().items()}
    moments = [
        {key: each.tolist() if isinstance(each, torch.Tensor) else each for key, each in of.items()}
        for of in engine.optimizer.state.values()
    ]
    counts = engine.global_steps, engine.global_samples, engine.micro_steps, engine.skipped_steps
    return weights, moments, engine.get_lr(), counts, engine.loss_scale


def refused(engine, words, call):
    """Every rank has an error with these words, and nothing else has happened."""
    before = state_of(engine)
    with pytest.raises(penstock.Error, match=words):
        call()
    assert state_of(engine) == before
    dist.barrier()


def check_any_stage_goes_on_to_the_same_bits(group):
    """Of floats every stage from every other; of short types from one other in the quick tier."""
    del group
    for name, kind in [("fp32", {}), ("bf16", BF16), ("fp16", FP16)]:
        options = {"accumulation": 2, "gradient_clipping": 0.5, **COURSE, **kind}
        for stage in range(4):
            folder = place(f"{name}-{stage}")
            engine, _ = initialize(mixed(), stage, options=options)
            train(engine, 3)
            saved = engine.save_checkpoint(folder, client_state={"epoch": stage})
            assert Path(saved) == folder / "global_step3"
            expected = train(engine, 3, first=3), state_of(engine)
            others = [(stage + ahead) % 4 for ahead in (1, 0, 2, 3)]
            for other in ranks.cases(others, quick=1 if kind else 4):
                again, _ = initialize(mixed(seed=5), other, options=options)
                train(again, 1)
                assert again.load_checkpoint(folder) == (saved, {"epoch": stage})
                found = train(again, 3, first=3), state_of(again)
                assert found[0] == expected[0], (name, stage, other)
                assert found[1][0] == expected[1][0] and found[1][2:] == expected[1][2:]


def check_what_is_left_out(group):
    del group
    engine, _ = initialize(mixed(), 1, options=COURSE)
    train(engine, 2)
    folder = place("parts")
    engine.save_checkpoint(folder)
    weights = engine.module_state_dict()
    again, _ = initialize(mixed(seed=5), 1, options=COURSE)
    again.load_checkpoint(folder, load_module_only=True)
    same_state(again.module_state_dict(), weights)
    assert (again.global_steps, again.get_lr(), len(again.optimizer.state)) == (0, [0.0], 0)
    again.load_checkpoint(folder, load_optimizer_states=False)
    assert (again.global_steps, again.get_lr() == engine.get_lr()) == (2, True)
    assert len(again.optimizer.state) == 0
    again.load_checkpoint(folder, load_lr_scheduler_states=False)
    assert len(again.optimizer.state) == len(engine.optimizer.state)


def check_models_that_are_others(group):
    del group
    engine, _ = initialize(mixed(), 3)
    train(engine, 1)
    folder = place("others")
    engine.save_checkpoint(folder)
    larger = mixed()
    larger.more = torch.nn.Linear(WIDTH, 1)
    wider = mixed()
    wider.norm = torch.nn.LayerNorm(2 * WIDTH)
    del (smaller := mixed()).sometimes
    for model, words in [
        (larger, "does not fit: more.weight is missing; more.bias is missing"),
        (smaller, "does not fit: sometimes.bias is unexpected; sometimes.weight is unexpected"),
        (wider, r'weight of "norm.weight" as \[8\], the model as \[16\]'),
    ]:
        other, _ = initialize(model, 2)
        refused(other, words, lambda e=other: e.load_checkpoint(folder))
        if model is not wider:
            other.load_checkpoint(folder, load_module_strict=False)
            assert torch.equal(
                other.module_state_dict()["first.weight"],
                engine.module_state_dict()["first.weight"],
            )


def check_frozen_parameters_may_be_left_out(group):
    del group
    for stage in (0, 3):
        model = mixed()
        model.first.requires_grad_(False)
        trained = [each for each in model.parameters() if each.requires_grad]
        engine, _ = initialize(model, stage, model_parameters=trained)
        train(engine, 1)
        folder = place(f"frozen-{stage}")
        path = engine.save_checkpoint(folder, exclude_frozen_parameters=True)
        names = {
            each["name"] for each in json.loads(Path(path, "manifest.json").read_text())["tensors"]
        }
        assert "twice.weight" in names and "first.weight" not in names
        engine.load_checkpoint(folder)
        whole, _ = initialize(mixed(), stage)
        refused(whole, "first.weight is missing", lambda e=whole, f=folder: e.load_checkpoint(f))


def check_a_save_inside_a_step_is_of_the_last_whole_one(group):
    """Rank 0 warns; the engine goes on as if nothing was saved, what is loaded from there."""
    lines = []
    with written_to_the_log(lines):
        for stage in range(4):
            whole, saving, loading = (
                initialize(mixed(), stage, options={"accumulation": 2})[0] for _ in range(3)
            )
            train(whole, 1)
            train(saving, 1)
            one_microbatch(saving, step=1, rank=group.rank())
            saving.save_checkpoint(place(f"inside-{stage}"))
            one_microbatch(saving, step=1, rank=group.rank(), micro=1)
            loading.load_checkpoint(place(f"inside-{stage}"))
            train(whole, 1, first=1)
            train(loading, 1, first=1)
            assert state_of(saving) == state_of(whole)
            assert state_of(loading) == state_of(whole)
    words = "save_checkpoint() inside step 1, after 1 of 2 microbatches"
    assert sum(words in line for line in lines) == 4 * (group.rank() == 0), lines


@contextmanager
def written_to_the_log(lines):
    """Its warnings."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("penstock").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("penstock").removeHandler(handler)


def one_microbatch(engine, step, rank, micro=0):
    """As train() takes it."""
    inputs, labels = words_of(10 * step + micro, rank)
    engine.backward(loss_of(engine(inputs, step), labels))
    engine.step()


def check_weights_for_others(group):
    """Whole weights, in the model's types."""
    for stage in (0, 3):
        engine, _ = initialize(mixed(), stage, options=BF16)
        train(engine, 1)
        folder = place(f"weights-{stage}")
        assert engine.save_16bit_model(folder)
        assert engine.save_16bit_model(folder, "model.safetensors")
        dist.barrier(group)
        state = engine.module_state_dict()
        same_state(torch.load(folder / "pytorch_model.bin"), state)
        found = load_file(folder / "model.safetensors")
        assert found.keys() == state.keys() - {"head.weight"}  # It is embedding.weight.
        assert all(torch.equal(found[name], state[name]) for name in found)
        assert {each.dtype for each in found.values()} == {torch.bfloat16}


ODD_NAMES = ["w", "w/exp_avg", "w#0", 'the "weight" [0:2] é']


class Scaled(torch.nn.Module):
    """With a parameter of no dimensions, one of one element, and an empty one."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.shift = torch.nn.Parameter(torch.tensor([0.5]))
        self.nothing = torch.nn.Parameter(torch.zeros(0, 3))
        self.odd = torch.nn.ParameterDict({name: torch.ones(3) for name in ODD_NAMES})
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        odd = sum(each.sum() for each in self.odd.values())
        return self.linear(x) * self.scale + self.shift + odd


def steps_of(engine, steps):
    losses = []
    for step in steps:
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def check_parameters_of_no_dimensions(group):
    """Their moments came back as one number for a slice, and the next step failed."""
    del group
    for stage in range(4):
        torch.manual_seed(0)
        engine, _ = initialize(Scaled(), stage)
        steps_of(engine, range(3))
        engine.save_checkpoint(place(f"scaled-{stage}"))
        expected = steps_of(engine, range(3, 5)), engine.module_state_dict()
        for other in range(4):
            torch.manual_seed(1)
            again, _ = initialize(Scaled(), other)
            again.load_checkpoint(place(f"scaled-{stage}"))
            assert steps_of(again, range(3, 5)) == expected[0], (stage, other)
            same_state(again.module_state_dict(), expected[1])


def check_a_course_without_a_state_goes_to_the_step(group):
    """It began at 0, or stayed ahead."""
    del group
    torch.manual_seed(0)
    plain, _ = initialize(Scaled(), 1)
    steps_of(plain, range(4))
    plain.save_checkpoint(place("plain"))
    for taken in (0, 6):
        engine, _ = initialize(Scaled(), 1, options=COURSE)
        steps_of(engine, range(4))
        expected = engine.get_lr()
        other, _ = initialize(Scaled(), 1, options=COURSE)
        steps_of(other, range(taken))
        other.load_checkpoint(place("plain"))
        assert (other.global_steps, other.get_lr()) == (4, expected)
        assert other.lr_scheduler.last_epoch == 4


def check_a_failed_save_leaves_the_folder_free(group):
    """Its lock stayed, as long as somebody kept the error."""
    engine, _ = initialize(mixed(), 1)
    folder = place("free")
    (folder / "latest").mkdir(parents=True, exist_ok=True)
    dist.barrier(group)
    with pytest.raises(penstock.Error) as kept:
        engine.save_checkpoint(folder)
    dist.barrier(group)
    if group.rank() == 0:
        (folder / "latest").rmdir()
    dist.barrier(group)
    engine.save_checkpoint(folder)
    assert kept.value is not None


def check_buffers_that_cannot_be_saved(group):
    """The rank that has one raised, and the other waited."""
    engine, _ = initialize(mixed(), 1)
    if group.rank() == 1:
        engine.module.register_buffer("adjacent", torch.eye(4).to_sparse(), persistent=False)
    refused(engine, "the buffer adjacent is of", lambda: engine.save_checkpoint(place("sparse")))


def check_ranks_that_save_to_other_folders(group):
    engine, _ = initialize(mixed(), 1)
    refused(
        engine,
        "ranks save to",
        lambda: engine.save_checkpoint(place(f"of-{group.rank()}"), tag="same"),
    )


def check_gradients_that_wait_for_a_step(group):
    engine, _ = initialize(mixed(), 1)
    inputs, labels = words_of(0, group.rank())
    engine.backward(engine(inputs, 0).float().mean() + 0 * labels.sum())
    engine.save_checkpoint(place("waiting"))
    engine.step()
    other, _ = initialize(mixed(), 1)
    other.load_checkpoint(place("waiting"))
    assert (other.global_steps, other.micro_steps) == (0, 0)


class Keeps(torch.optim.SGD):
    """With states of other kinds."""

    kept: object = None

    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self.state[each].update(self.kept(each))
        return super().step(closure)


def check_states_that_cannot_be_put_together(group):
    del group
    untested = {"zero_allow_untested_optimizer": True}
    for words, kept in [
        ("history of .*, tensors in a container", lambda each: {"history": [each.grad.clone()]}),
        ('keeps "weight" of', lambda each: {"weight": each.grad.clone()}),
    ]:
        kind = type("Keeps", (Keeps,), {"kept": staticmethod(kept)})
        engine, _ = initialize(
            mixed(), 1, options=untested, optimizer=lambda each, k=kind: k(each, lr=0.01)
        )
        train(engine, 1)
        with pytest.raises(penstock.Error, match=words):
            engine.save_checkpoint(place("together"))
        dist.barrier()


def check_an_optimizer_of_another_kind(group):
    del group
    engine, _ = initialize(mixed(), 1, optimizer=lambda each: torch.optim.SGD(each, 0.1, 0.9))
    train(engine, 1)
    engine.save_checkpoint(place("kind"))
    other, _ = initialize(mixed(), 1)
    words = "has an optimizer: SGD, and this engine has AdamW"
    refused(other, words, lambda: other.load_checkpoint(place("kind")))


def check_other_optimizers(group):
    """Their states are tensors of other shapes, numbers, and lists."""
    del group
    for number, make in enumerate(
        [
            lambda each: torch.optim.NAdam(each, lr=0.01),
            lambda each: torch.optim.SGD(each, lr=0.01, momentum=0.9),
            lambda each: torch.optim.Adafactor(each, lr=0.01),
            lambda each: torch.optim.ASGD(each, lr=0.01),
            lambda each: torch.optim.Rprop(each, lr=0.01),
        ]
    ):
        folder = place(f"optimizer-{number}")
        engine, _ = initialize(mixed(), 0, optimizer=make)
        train(engine, 3)
        engine.save_checkpoint(folder)
        expected = train(engine, 2, first=3), state_of(engine)
        again, _ = initialize(mixed(seed=5), 0, optimizer=make)
        again.load_checkpoint(folder)
        assert (train(again, 2, first=3), state_of(again)) == expected, number


test_check = ranks.tests_of(__file__, WORLD_SIZE)
test_check_all = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
