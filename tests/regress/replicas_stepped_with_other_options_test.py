"""Replicas stepped with other learning rates, and nobody said so.

A scheduler that looks at its own rank's loss, or a script that changes a rate on one rank, made the
replicas' weights drift apart; with ZeRO, halves of a tensor had other rates.  Every option of a
group is compared before each step, and so is what else ranks take for granted of it.
"""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE = 2
STEP = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
STAGES = (0, 1, 2, 3)


def groups_of(model):
    *weights, bias = model.parameters()
    return [{"params": weights}, {"params": [bias], "weight_decay": 0.0}]


def replica(stage, make=torch.optim.AdamW, course=None, **options):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    engine = penstock.initialize(
        model=model,
        optimizer=make(groups_of(model), lr=0.125, **options),
        lr_scheduler=course,
        config={**STEP, "zero_optimization": {"stage": stage}},
    )[0]
    return engine, lambda **kwargs: take_step(engine, **kwargs)


def take_step(engine, **kwargs):
    for _ in range(2):
        engine.backward(engine(torch.ones(2, 4)).square().mean())
        engine.step(**kwargs)


def pipeline(stage, **more):
    layers = [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(2)]
    loss = torch.nn.functional.mse_loss
    module = PipelineModule(layers, num_stages=1, loss_fn=loss)
    engine = penstock.initialize(
        model=module,
        model_parameters=groups_of(module),
        config={
            **STEP,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.125}},
            "zero_optimization": {"stage": stage},
        },
        **more,
    )[0]
    batch = torch.ones(2, 4), torch.zeros(2, 4)
    return engine, lambda: engine.train_batch(iter([batch] * 2))


def weights_of(engine):
    return torch.cat([each.detach().flatten().clone() for each in engine.module.parameters()])


def refused(step, *words):
    """Both ranks say the same, with both values."""
    with pytest.raises(penstock.CommError) as raised:
        step()
    told = str(raised.value)
    assert all(word in told for word in ("ranks 0 and 1 do not take the same step", *words)), told
    assert raised.value.exit_code == 2
    everywhere = [None, None]
    dist.all_gather_object(everywhere, told)
    assert everywhere[0] == everywhere[1]


def set_option(engine, number, **options):
    engine.optimizer.param_groups[number].update(options)


def check_every_option_of_a_group_in_every_stage(group):
    del group
    rank = dist.get_rank()
    of_sgd = [{"momentum": 0.5 + rank / 4}]
    of_adam = [
        {"lr": 0.125 + rank / 8},
        {"weight_decay": rank / 2},
        {"betas": (0.5, 0.5 + rank / 4)},
        {"eps": 1e-8 * (1 + rank)},
        {"amsgrad": bool(rank)},
    ]
    for stage in STAGES:
        for kind, all_options in ((torch.optim.SGD, of_sgd), (torch.optim.AdamW, of_adam)):
            for options in all_options:
                ((name, _),) = options.items()
                engine, step = replica(stage, kind)
                step()
                before = weights_of(engine) if stage < 3 else None
                set_option(engine, 1, **options)
                refused(step, "optimizer group 1=", f"{name} ")
                if before is not None:
                    assert torch.equal(before, weights_of(engine))


def check_a_scheduler_that_looks_at_its_own_rank(group):
    del group
    rank = dist.get_rank()
    for stage in STAGES:
        _, step = replica(
            stage,
            course=lambda of: torch.optim.lr_scheduler.ReduceLROnPlateau(
                of, patience=0, factor=0.5
            ),
        )

        def train(step=step):
            for i in range(4):
                step(lr_kwargs={"metrics": float(i) if rank else -float(i)})

        refused(train, "rank 0 has optimizer group 0=", "lr 0.125", "lr 0.0625")


def check_pipelines(group):
    del group
    for stage in (0, 1, 3):
        engine, step = pipeline(stage)
        step()
        set_option(engine, 0, lr=0.125 + dist.get_rank() / 8)
        refused(step, "optimizer group 0=", "lr 0.125", "lr 0.25")


def check_tensors_that_change_in_place(group):
    del group
    engine, step = replica(0)
    set_option(engine, 0, lr=torch.tensor(0.125))
    step()
    if dist.get_rank() == 1:
        engine.optimizer.param_groups[0]["lr"].fill_(0.5)
    refused(step, "lr 0.125", "lr 0.5")


def check_ranks_that_end_steps_elsewhere(group):
    del group
    engine, _ = replica(1)
    batch = torch.ones(2, 4)

    def uneven():
        for i in range(4):
            engine.set_gradient_accumulation_boundary(i % (1 + dist.get_rank()) == 0 and i > 0)
            engine.backward(engine(batch).mean())
            engine.step()

    refused(uneven, "microbatches taken=")


def check_batches_of_other_sizes(group):
    del group
    engine, step = replica(0)
    step()
    if dist.get_rank() == 1:
        engine.set_train_batch_size(16)

    def train():
        for _ in range(4):
            engine.backward(engine(torch.ones(2, 4)).mean())
            engine.step()

    refused(train, "batch sizes=8 samples a step", "batch sizes=16 samples a step")


def check_what_all_ranks_change_alike(group):
    del group
    for make in (replica, pipeline):
        for stage in (0, 1, 3):
            engine, step = make(stage)
            for lr in (0.5, 0.25):
                set_option(engine, 0, lr=lr)
                set_option(engine, 1, betas=(lr, 0.9))
                step()
            assert engine.get_lr()[0] == 0.25


def check_loaders_of_the_two_ends_of_a_pipeline(group):
    del group
    rank = dist.get_rank()

    def ends(count, shuffle=False):
        torch.manual_seed(0)
        layers = [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(2)]
        module = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
        engine = penstock.initialize(
            model=module, config={**STEP, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
        )[0]
        data = [(torch.ones(4), torch.zeros(4)) for _ in range(count)]
        torch.manual_seed(rank if shuffle == "by rank" else 0)
        engine.set_dataloader(
            torch.utils.data.DataLoader(data, batch_size=2, shuffle=bool(shuffle))
        )
        return lambda: [engine.train_batch() for _ in range(3)]

    ends(8)()
    ends(8, shuffle="alike")()
    refused(ends(8 + 2 * rank), "data loader=4 batches", "data loader=5 batches")
    refused(ends(8, shuffle="by rank"), "in the order of the random state")


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
