"""Two hosts whose folders of one name held different checkpoints trained on a mix of both.

Engines compared what they opened, penstock.checkpoint.load() the step and the names of values, and
`penstock train --resume` nothing.  All three go through one door now; tests/train has the last.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ranks
import torch

import penstock
import penstock.checkpoint

WORLD_SIZE = 2


def place(name):
    return Path(os.environ["STORE"]).with_name(name)


def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.AdamW(model.parameters())


def engine_of(seed):
    model, optimizer = made(seed)
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
    return penstock.initialize(model=model, optimizer=optimizer, config=config)[0]


def refused(call, module, *words):
    before = [each.tolist() for each in module.parameters()]
    with pytest.raises(penstock.Error) as raised:
        call()
    told = str(raised.value)
    assert all(word in told for word in ("ranks 0 and 1 do not load the same", *words)), told
    assert [each.tolist() for each in module.parameters()] == before


def check_folders_that_differ_in_their_weights_alone(group):
    rank = group.rank()
    for name, seed in (("A", 1), ("B", 2)):
        penstock.checkpoint.save(place(name) / "kept", *made(seed), step=5, values={"epoch": 1})
        engine_of(seed).save_checkpoint(place(f"engine-{name}"), tag="kept")
    mine = "AB"[rank]
    model, optimizer = made(9)
    refused(
        lambda: penstock.checkpoint.load(place(mine) / "kept", model, optimizer),
        model,
        "rank 0 has checkpoint=step 5, manifest ",
    )
    engine = engine_of(9)
    refused(
        lambda: engine.load_checkpoint(place(f"engine-{mine}")), engine.module, "=step 0, manifest "
    )


def check_one_checkpoint_under_two_paths(group):
    """Hosts may have a folder in other places."""
    model, optimizer = made(1)
    penstock.checkpoint.save(place("one") / "kept", model, optimizer, step=7)
    if group.rank() == 1:
        place("elsewhere").symlink_to(place("one"))
    folder = place("elsewhere" if group.rank() == 1 else "one")
    again = made(4)
    assert penstock.checkpoint.load(folder / "kept", *again).step == 7
    assert torch.equal(again[0].weight, model.weight)


def check_a_checkpoint_that_one_rank_does_not_have(group):
    engine = engine_of(1)
    engine.save_checkpoint(place("had"))
    if group.rank() == 1:
        place("empty").mkdir()
    engine = engine_of(2)
    folder = place("empty" if group.rank() == 1 else "had")
    refused(lambda: engine.load_checkpoint(folder), engine.module, "rank 1 has checkpoint=none")
    assert engine.load_checkpoint(place("nowhere")) == (None, None)


def check_ranks_that_load_other_parts(group):
    engine = engine_of(1)
    engine.save_checkpoint(place("parts"))
    rank = group.rank()
    refused(
        lambda: engine.load_checkpoint(place("parts"), load_optimizer_states=rank == 0),
        engine.module,
        "what is loaded=",
    )
    engine.load_checkpoint(place("parts"))


def check_values_that_cannot_be_read_leave_all_as_it_was(group):
    """They were read when the weights were set already."""
    if group.rank() == 0:
        folder = place("broken")
    model, optimizer = made(1)
    folder = place("broken")
    penstock.checkpoint.save(folder, model, optimizer, values={"epoch": 1})
    other, optimizer = made(2)
    before = other.weight.tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penstock._engines.saving.stage_checkpoints.Values, "read", unreadable(folder))
        with pytest.raises(penstock.Error):
            penstock.checkpoint.load(folder, other, optimizer)
    assert other.weight.tolist() == before


def unreadable(folder):
    read = penstock._engines.saving.stage_checkpoints.Values.read

    def failing(self, key):
        if key == "values":
            raise penstock.CheckpointError(f"{folder}: values is no value")
        return read(self, key)

    return failing


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
