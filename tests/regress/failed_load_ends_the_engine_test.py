"""A load_checkpoint() that fails leaves the engine as it was, on all ranks.

After a wrong tag every later call repeated the error, because the rank that found it ended the
waits of all ranks for good.  So did a save_checkpoint() that could not write.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import MICROBATCHES, WIDTH, Block, batches, config, engine_of, language_model

import penstock
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE = 2
COURSE = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}}


def state_of(engine):
    """All that a step depends on here, as values that can be compared."""
    weights = {name: each.tolist() for name, each in engine.module.named_parameters()}
    moments = [
        {key: each.tolist() if isinstance(each, torch.Tensor) else each for key, each in of.items()}
        for of in engine.optimizer.state.values()
    ]
    return weights, moments, engine.get_lr(), engine.global_steps, torch.get_rng_state().tolist()


def step(engine, number):
    return engine.train_batch(batches(number, [5] * MICROBATCHES)).item()


def refused(engine, words, call):
    """Every rank has an error with these words, and nothing else has happened."""
    before = state_of(engine)
    with pytest.raises(
        (penstock.ConfigError, penstock.CheckpointError, penstock.CommError), match=words
    ):
        call()
    assert state_of(engine) == before
    dist.barrier()


def damaged(folder, number, name, damage):
    """A copy of the checkpoint in which `damage` was done to one file."""
    copy = folder.with_name(f"{folder.name}-{number}")
    if dist.get_rank() == 0:
        shutil.copytree(folder, copy)
        damage(next(copy.glob(f"*/{name}")))
    dist.barrier()
    return copy


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def check_wrong_checkpoints(group):
    folder = Path(os.environ["STORE"]).with_name("checkpoints")
    engine = engine_of(language_model(), COURSE)
    step(engine, 0)
    engine.save_checkpoint(folder, tag="good")
    expected = [step(engine, number) for number in (1, 2)]
    engine = engine_of(language_model(), COURSE, seed=5)
    step(engine, 7)
    refused(
        engine,
        r"no such checkpoint: in .* there are good",
        lambda: engine.load_checkpoint(folder, tag="goof"),
    )
    refused(
        engine,
        "do not load the same|no such checkpoint",
        lambda: engine.load_checkpoint(folder, tag=f"goo{'df'[dist.get_rank()]}"),
    )
    last = "shard-00001-of-00002.safetensors"
    damages = [
        (
            "00001-of-00002.safetensors.* has 9 bytes",
            last,
            lambda each: each.write_text("no tensor"),
        ),
        ("00001-of-00002.safetensors.*is damaged", last, flip),
        ("00001-of-00002.safetensors.*No such file", last, lambda each: each.unlink()),
        ("manifest.json.*is damaged", "manifest.json", flip),
        ("manifest.json", "manifest.json", lambda each: each.unlink()),
    ]
    for number, (words, name, damage) in enumerate(damages):
        copy = damaged(folder, number, name, damage)
        refused(engine, words, lambda c=copy: engine.load_checkpoint(c, tag="good"))
    engine.load_checkpoint(folder)
    assert [step(engine, number) for number in (1, 2)] == expected


def check_engines_that_do_not_fit(group):
    folder = Path(os.environ["STORE"]).with_name("others")
    engine = engine_of(language_model(), COURSE)
    step(engine, 0)
    engine.save_checkpoint(folder)
    course = {"scheduler": {"type": "ExponentialLR", "params": {"gamma": 0.5}}}
    adam = {"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}
    for words, more in [
        ("has lr_scheduler WarmupLR, and this engine has ExponentialLR", course),
        ("has an optimizer: SGD, and this engine has AdamW", adam),
    ]:
        other = engine_of(language_model(), more)
        refused(other, words, lambda e=other: e.load_checkpoint(folder))
        step(other, 1)
    layers = language_model()
    layers[4] = LayerSpec(Block, 3)
    other = engine_of(layers, partition_method=[0, 3, 9])
    words = r'weight of "4.net1.weight" as \[8, 8\], the model as \[3'
    refused(other, words, lambda: other.load_checkpoint(folder))
    step(other, 1)


class Picky(torch.nn.Linear):
    """Has something to say when it is loaded, which no check of shapes can know."""

    version = 1

    def set_extra_state(self, state):
        if state["version"] < self.version:
            raise KeyError(f"{state} is too old")

    def get_extra_state(self):
        return {"version": self.version}


def check_layers_that_refuse_themselves(group):
    folder = Path(os.environ["STORE"]).with_name("picky")
    torch.manual_seed(0)
    layers = [LayerSpec(Picky, WIDTH, WIDTH) for _ in range(4)]
    module = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    engine, *_ = penstock.initialize(model=module, config=config())

    def data(seed):
        x, y = torch.randn(2, 2, WIDTH, generator=torch.Generator().manual_seed(seed))
        return iter([(x, y)] * MICROBATCHES)

    engine.train_batch(data(0))
    engine.save_checkpoint(folder)
    engine.train_batch(data(1))
    if not engine.is_first_stage():
        module.get_submodule("3").version = 2
    refused(
        engine,
        "the extra state of 3 does not fit.*is too old",
        lambda: engine.load_checkpoint(folder),
    )
    engine.train_batch(data(2))


def check_a_save_that_fails(group):
    folder = Path(os.environ["STORE"]).with_name("unwritable")
    engine = engine_of(language_model())
    engine.save_checkpoint(folder, tag="kept")
    if dist.get_rank() == 0:
        (folder / "kept.saving").write_text("a file in the way")
    dist.barrier()
    step(engine, 0)
    refused(
        engine,
        "cannot make the folder.*kept.saving",
        lambda: engine.save_checkpoint(folder, tag="kept"),
    )
    for tag in ("latest", "a/b", ""):
        refused(
            engine, "must be that of a folder", lambda t=tag: engine.save_checkpoint(folder, tag=t)
        )
    expected = step(engine, 1)
    again = engine_of(language_model(), seed=3)
    again.load_checkpoint(folder, tag="kept")
    step(again, 0)
    assert step(again, 1) == expected


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
