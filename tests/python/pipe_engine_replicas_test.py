"""penstock.pipe's engine on four ranks: two replicas of two stages, and four stages."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import Embedding, Reference, batches, language_model, loss_fn

import penstock
from penstock.pipe import PipeDataParallelTopology, PipelineModule

WORLD_SIZE = 4
MICROBATCHES = 4
STEPS = 10
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": MICROBATCHES,
    "optimizer": {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9}},
}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def _compare(name, stages, steps=STEPS, clipping=0.0, **options):
    replicas = WORLD_SIZE // stages
    layers = language_model(blocks=7)
    torch.manual_seed(0)
    module = PipelineModule(
        layers, topology=PipeDataParallelTopology(stages, replicas), loss_fn=loss_fn
    )
    config = {**CONFIG, "schedule": {"name": name, **options}, "gradient_clipping": clipping}
    engine, *_ = penstock.initialize(model=module, config=config)
    torch.manual_seed(0)
    reference = Reference(layers, sgd, clipping=clipping)
    for step in range(steps):
        lengths = [3 + step, 5, 4, 7]
        data = [list(batches(10 * step + i, lengths)) for i in range(replicas)]
        loss = engine.train_batch(iter(data[engine.dp_rank]))
        assert loss.item() == pytest.approx(reference.step([*itertools.chain(*data)]), rel=1e-5)
        assert engine.get_global_grad_norm() == pytest.approx(reference.norm, rel=1e-6)
        reference.compare(engine.module)
    data = [list(batches(100 + i, [6] * 3)) for i in range(replicas)]
    is_end = engine.is_first_stage() or engine.is_last_stage()
    mine = iter(data[engine.dp_rank]) if is_end else None
    loss = engine.eval_batch(mine, num_micro_batches=3)
    assert loss.item() == pytest.approx(reference.evaluate([*itertools.chain(*data)]), rel=1e-5)


def check_two_replicas(group):
    _compare("1f1b", 2, clipping=0.1)


def check_two_replicas_of_several_stages_a_rank(group):
    _compare("interleaved_1f1b", 2, stages_per_rank=2)
    _compare("zbv", 2, clipping=0.1)


def check_four_stages(group):
    _compare("1f1b", 4, clipping=0.1)
    _compare("zbv", 4, steps=3)
    _compare("interleaved_1f1b", 4, steps=3, stages_per_rank=2)


def check_replicas_begin_alike_whatever_their_seeds(group):
    torch.manual_seed(dist.get_rank())
    module = PipelineModule(language_model(), num_stages=2, loss_fn=loss_fn)
    engine, *_ = penstock.initialize(model=module, config=CONFIG)
    for step in range(2):
        engine.train_batch(batches(step + engine.dp_rank, [5] * MICROBATCHES))
    weights = [each.detach().tolist() for each in module.parameters()]
    of_ranks = [None] * WORLD_SIZE
    dist.all_gather_object(of_ranks, weights)
    assert of_ranks[0] == of_ranks[1] != of_ranks[2] == of_ranks[3]


ADAM = {
    **CONFIG,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}},
}
LAYOUTS = [
    (2, {"schedule": "1f1b"}),
    (2, {"schedule": "zbv", "zero_optimization": {"stage": 2}}),
    (4, {"schedule": "1f1b"}),
    (1, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}),
]


def _adam(stages, more):
    module = PipelineModule(language_model(blocks=7), num_stages=stages, loss_fn=loss_fn)
    # The same samples in each step, however many replicas share them.
    sizes = {"gradient_accumulation_steps": 2 * MICROBATCHES * stages // WORLD_SIZE}
    return penstock.initialize(model=module, config={**ADAM, **sizes, **more})[0]


def _train(engine, steps):
    losses = []
    for step in steps:
        share = list(batches(step, [4] * 2 * MICROBATCHES))[engine.dp_rank :: engine.dp_world_size]
        losses.append(engine.train_batch(iter(share)).item())
    return losses


def check_any_layout_goes_on_from_a_checkpoint(group):
    folder = Path(os.environ["STORE"]).with_name("checkpoints")
    for number, layout in enumerate(LAYOUTS):
        torch.manual_seed(0)
        engine = _adam(*layout)
        assert engine.load_checkpoint(folder / str(number)) == (None, None)
        _train(engine, range(3))
        engine.save_checkpoint(folder / str(number), client_state={"epoch": number})
        after = _train(engine, range(3, 6))
        for other in LAYOUTS:
            torch.manual_seed(1)  # Other weights, if they were not loaded.
            again = _adam(*other)
            path, state = again.load_checkpoint(folder / str(number))
            assert path == str(folder / str(number) / "global_step3")
            assert (state, again.global_steps) == ({"epoch": number}, 3)
            assert again.get_lr() == pytest.approx([0.01 * math.log(3, 8)])
            losses = _train(again, range(3, 6))
            if other == layout:
                assert losses == after
            assert losses == pytest.approx(after, rel=1e-5)


def check_files_of_a_checkpoint(group):
    folder = Path(os.environ["STORE"]).with_name("files")
    engine = _adam(2, {})
    _train(engine, range(1))
    path = Path(engine.save_checkpoint(folder, tag="mine", save_latest=False))
    assert engine.load_checkpoint(folder) == (None, None)
    assert engine.load_checkpoint(folder, tag="mine")[0] == str(path)
    assert sorted(each.name for each in path.iterdir()) == [
        "manifest.json",
        *(f"shard-0000{rank}-of-00004.safetensors" for rank in range(WORLD_SIZE)),
    ]
    names = {each["name"] for each in json.loads((path / "manifest.json").read_text())["tensors"]}
    layers = {name.split(".")[0] for name in names if "#" not in name}
    assert layers == {str(i) for i in [*range(8), 9]}  # 8 has no weights.
    dist.barrier()
    if dist.get_rank() == 0:
        (path / "shard-00003-of-00004.safetensors").write_text("no checkpoint")
    dist.barrier()
    with pytest.raises(penstock.Error, match="shard-00003"):
        engine.load_checkpoint(folder, tag="mine")


class Fails(Embedding):
    fails = False

    def forward(self, tokens):
        if self.fails:
            raise KeyError("a token that nobody knows")
        return super().forward(tokens)


def check_all_replicas_hear_of_a_failure(group):
    rank = dist.get_rank()
    layers = [*language_model()[1:-1], torch.nn.Linear(8, 17)]
    module = PipelineModule([Fails(), *layers], num_stages=2, loss_fn=loss_fn)
    engine, *_ = penstock.initialize(model=module, config=CONFIG)
    engine.train_batch(batches(0, [5] * MICROBATCHES))
    dist.barrier()  # A slower rank would hear of the next step's failure in this one.
    if rank == 1:  # The first stage of the second replica.
        module.get_submodule("0").fails = True
    with pytest.raises((KeyError, penstock.CommError)) as caught:
        engine.train_batch(batches(1, [5] * MICROBATCHES))
    assert isinstance(caught.value, KeyError if rank == 1 else penstock.CommError)
    assert "a token that nobody knows" in str(caught.value)
    if rank != 1:
        assert "rank 1" in str(caught.value) and "0F0" in str(caught.value)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
