"""penstock.pipe's engine on four ranks: two replicas of two stages, and four stages."""

from __future__ import annotations

import itertools

import pytest
import ranks
import torch
import torch.distributed as dist
from penstock.pipe import PipeDataParallelTopology, PipelineModule
from pipe_models import Embedding, Reference, batches, language_model, loss_fn

import penstock

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
    loss = engine.eval_batch(iter(data[engine.dp_rank]), num_micro_batches=3)
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
