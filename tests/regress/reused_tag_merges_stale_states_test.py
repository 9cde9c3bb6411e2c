"""A tag that is saved again, by fewer ranks or by ranks that are killed in the middle.

The tag's folder was never cleared, and a load merged all optim_states-*.pt that it found: after a
crash, one rank that went on and saved the same tag again got Adam's moments of the older save,
7.669 instead of 7.801 a step later.  A tag is there as a whole or not at all, and says what belongs
to it.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock.pipe import LayerSpec, PipelineModule

WIDTH, SAMPLES, TAG = 16, 8, "again"
DEADLINE_S = ranks.DEADLINE_S  # Of one world.


class Course(torch.optim.lr_scheduler.LambdaLR):
    """Kills its rank when it is to be saved, if it is told to."""

    def state_dict(self):
        if "KILLED" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().state_dict()


def engine_of():
    torch.manual_seed(0)
    layers = [LayerSpec(torch.nn.Linear, WIDTH, WIDTH) for _ in range(3)]
    module = PipelineModule(layers, num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    config = {
        "train_batch_size": SAMPLES,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.05}},
        "zero_optimization": {"stage": 1},
    }
    return penstock.initialize(
        model=module, config=config, lr_scheduler=lambda each: Course(each, lambda _: 1.0)
    )[0]


def train(engine, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(2, SAMPLES, WIDTH, generator=generator).chunk(engine.dp_world_size, 1)[
            engine.dp_rank
        ]
        engine.train_batch(iter([(x, y)]))


def moments(engine):
    """The sum of what Adam has of all parameters."""
    states = engine.optimizer.state.values()
    found = torch.tensor([sum(state["exp_avg"].abs().sum() for state in states)])
    dist.all_reduce(found)
    return found.item()


def checkpoints():
    return Path(os.environ["STORE"]).parent.parent / "checkpoints"


def tell(value):
    path = Path(os.environ["STORE"]).with_name(f"told-{dist.get_rank()}.json")
    path.write_text(json.dumps(value))


def check_two_save(group):
    engine = engine_of()
    train(engine, range(3))
    engine.save_checkpoint(checkpoints(), tag=TAG)
    Path(checkpoints(), TAG, "notes.txt").write_text("mine")


def check_one_goes_on_and_saves_again(group):
    engine = engine_of()
    engine.load_checkpoint(checkpoints())
    train(engine, range(3, 6))
    engine.save_checkpoint(checkpoints(), tag=TAG)
    train(engine, range(6, 7))
    tell(moments(engine))


def check_all_go_on(group):
    engine = engine_of()
    engine.load_checkpoint(checkpoints(), tag=TAG)
    train(engine, range(engine.global_steps, engine.global_steps + 1))
    tell(moments(engine))


def check_all_are_killed(group):
    engine = engine_of()
    engine.load_checkpoint(checkpoints())
    train(engine, range(6, 8))
    os.environ["KILLED"] = "yes"
    engine.save_checkpoint(checkpoints(), tag=TAG)


def run(folder, size, name, codes=None):
    """What the ranks of a world have told, which runs one of the checks."""
    folder = folder / f"{name}-{size}-{len(list(folder.iterdir()))}"
    folder.mkdir()
    ended = ranks.wait(ranks.start(__file__, size, folder, name), DEADLINE_S)
    assert ended == (codes or [0] * size), ranks.logs(folder)
    for path in folder.glob("outcomes-*.jsonl"):
        outcome = json.loads(path.read_text())["outcome"]
        assert not outcome, outcome
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("told-*.json"))]
    return told[0] if told else None


def test_a_tag_is_the_last_whole_save(tmp_path):
    run(tmp_path, 2, "check_two_save")
    expected = run(tmp_path, 1, "check_one_goes_on_and_saves_again")
    assert run(tmp_path, 1, "check_all_go_on") == expected
    folder = tmp_path / "checkpoints" / TAG
    assert (folder / "notes.txt").read_text() == "mine"
    run(tmp_path, 2, "check_all_are_killed", codes=[-signal.SIGKILL] * 2)
    assert (folder / "notes.txt").read_text() == "mine"
    assert run(tmp_path, 2, "check_all_go_on") == pytest.approx(expected, rel=1e-5)


if __name__ == "__main__":
    ranks.main(globals())
