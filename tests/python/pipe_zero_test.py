"""Every ZeRO stage under pipelines: the bits of ZeRO 0, and the memory that the formula says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import WIDTH, Block, Embedding, batches, half, loss_fn, to_logits
from torch.utils.checkpoint import checkpoint

import penstock
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from penstock.zero import GatheredParameters, ZeroParamStatus

MICROBATCHES = 4
STEPS = 10
SCHEDULES = [
    {"name": "1f1b"},
    {"name": "interleaved_1f1b", "stages_per_rank": 2},
    {"name": "zbv"},
]


class Sometimes(torch.nn.Module):
    """Has a parameter that only some steps use, one that none does, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.twice = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.sometimes = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.never = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        x = x + torch.tanh(x @ self.twice) @ self.twice.T
        return x + x @ self.sometimes if x.shape[1] % 2 else x


def layers_of():
    """Tied ends, a module that is in the list twice, and blocks."""
    again = Block(16)
    return [
        TiedLayerSpec("embedding", Embedding),
        LayerSpec(Block, 64),
        again,
        LayerSpec(Sometimes),
        again,
        LayerSpec(Block, 64),
        half,
        LayerSpec(torch.nn.LayerNorm, WIDTH),
        LayerSpec(Block, 32),
        TiedLayerSpec("embedding", Embedding, forward_fn=to_logits),
    ]


def engine_of(zero, schedule=SCHEDULES[0], layers=layers_of, more=None, **options):
    torch.manual_seed(0)
    module = PipelineModule(
        layers(),
        num_stages=max(1, dist.get_world_size() // 2),
        loss_fn=loss_fn,
        **options,
    )
    sharing = {"stage": zero, "reduce_bucket_size": 700}
    if zero == 3:  # 72 elements stay, others do not.
        sharing |= {"stage3_param_persistence_threshold": 72, "stage3_max_live_parameters": 2000}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "schedule": schedule,
        "zero_optimization": sharing,
        **(more or {}),
    }
    return penstock.initialize(model=module, config=config)[0]


def data_of(engine, step):
    lengths = [5, 4 + step % 2 * 2, 6, 5 - step % 2]
    return batches(10 * step + engine.dp_rank, lengths)


def train(engine, steps):
    """By step, its loss and norm."""
    found = []
    for step in steps:
        loss = engine.train_batch(data_of(engine, step))
        found.append((loss.item(), engine.get_global_grad_norm()))
    return found


def weights_of(engine):
    with GatheredParameters(engine.module.parameters()):
        return {name: each.tolist() for name, each in engine.module.state_dict().items()}


def same_for_every_stage(schedule, steps=STEPS, layers=layers_of, more=None, **options):
    expected = None
    for zero in range(4):
        engine = engine_of(zero, schedule, layers, more, **options)
        found = train(engine, range(steps)), weights_of(engine)
        evaluated = engine.eval_batch(batches(99 + engine.dp_rank, [3, 7]), num_micro_batches=2)
        found = (*found, evaluated.item())
        expected = expected or found
        assert found == expected, (schedule, zero)
    losses = [loss for loss, _ in expected[0]]
    assert losses[-1] < losses[0]
    return engine


def check_stages_train_to_the_same_bits(group):
    del group
    for schedule in SCHEDULES:
        engine = same_for_every_stage(schedule)
        paging = engine._replicated.held.paging
        assert paging["uses"] > 0 and paging["faults"] > 0


def check_recomputed_activations(group):
    """Both kinds: a reentrant one runs a backward in a backward, so sums leave when it is over."""
    del group

    def reentrant(function, *values):
        return checkpoint(function, *values, use_reentrant=True)

    first, _, last = SCHEDULES
    sweep = [(None, first), (reentrant, last), (None, last), (reentrant, first)]
    for function, schedule in ranks.cases(sweep, quick=2):
        same_for_every_stage(
            schedule,
            activation_checkpoint_interval=1,
            activation_checkpoint_func=function,
            checkpointable_layers=["Block", "Sometimes"],
        )


class Doubled(torch.autograd.Function):
    """A node of Python's that runs a backward of its own, twice: gradients seem final, and grow."""

    @staticmethod
    def forward(ctx, x, linear):
        ctx.linear = linear
        ctx.save_for_backward(x)
        return linear(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        total = 0
        for _ in range(2):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                y = ctx.linear(x)
            torch.autograd.backward(y, gradient / 2)
            total = total + x.grad
        return total, None


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Doubled.apply(x, self.linear)


def check_a_backward_within_a_backward(group):
    del group

    def layers():
        return [LayerSpec(Embedding), *(LayerSpec(Nested) for _ in range(4)), LayerSpec(Head)]

    for schedule in (SCHEDULES[0], SCHEDULES[2]):
        same_for_every_stage(schedule, layers=layers)


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(WIDTH, 17)

    def forward(self, x):
        return self.head(x)


def _bytes(tensors):
    return sum({t.untyped_storage().data_ptr(): t.nbytes for t in tensors if t.nbytes}.values())


def check_memory_is_that_of_the_formula(group):
    """Of parameters, gradients when they are summed, and the optimizer's state, of one rank."""
    del group

    def layers():
        wide = [LayerSpec(torch.nn.Linear, WIDTH, 2048), LayerSpec(torch.nn.Linear, 2048, WIDTH)]
        return [LayerSpec(Embedding), *wide, *wide, LayerSpec(Head)]

    for zero in range(4):
        engine = engine_of(zero, layers=layers, partition_method="uniform")
        parameters = list(engine.module.parameters())
        gradients = []

        def look(optimizer, args, kwargs, found=gradients, own=parameters):
            parts = [each for group in optimizer.param_groups for each in group["params"]]
            found.append(sum(p.grad.nbytes for p in parts if p.grad is not None))
            assert all(p.grad is None for p in own if not any(p is each for each in parts))

        engine.optimizer.register_step_pre_hook(look)
        train(engine, range(2))
        whole = sum(each.numel() for each in parameters) * 4
        share = [1, 0.5][zero > 0]
        states = [s for state in engine.optimizer.state.values() for s in state.values()]
        assert _bytes(s for s in states if s.dim()) == pytest.approx(2 * share * whole, rel=0.02)
        assert gradients == pytest.approx([share * whole] * 2, rel=0.02)
        masters = _bytes([each.detach() for each in engine._update.masters])
        assert masters == pytest.approx(share * whole, rel=0.02)
        with torch._C.DisableTorchFunctionSubclass():
            away = [each for each in parameters if each.untyped_storage().nbytes() == 0]
        of_away = sum(each.numel() for each in away) * 4
        assert of_away > 0.95 * whole if zero == 3 else of_away == 0


def check_what_is_away_comes_when_it_is_read(group):
    del group
    engine = engine_of(3)
    train(engine, range(1))
    weight = next(p for p in engine.module.parameters() if p.numel() > 500)
    found = weight.norm()
    with GatheredParameters(weight):
        assert torch.equal(found, weight.norm())
    assert weight.ds_status is ZeroParamStatus.NOT_AVAILABLE
    train(engine, range(1, 2))


def check_a_layer_has_one_writer(group):
    """Tied layers stand on two ranks, and are saved once."""
    del group
    engine = engine_of(3)
    model = engine.module
    all_of = [None] * dist.get_world_size()
    dist.all_gather_object(
        all_of, (engine.dp_rank, set(model._saved_modules()[1]), set(model._saved_modules()[0]))
    )
    for replica in range(2):
        written = [index for place, each, _ in all_of if place == replica for index in each]
        read = {index for place, _, each in all_of if place == replica for index in each}
        assert sorted(written) == sorted(read)
        assert "0." in read and "9." not in read


def check_any_stage_goes_on_from_a_checkpoint(group):
    del group
    folder = Path(os.environ["STORE"]).with_name(f"zero-{dist.get_world_size()}")
    for kind in ranks.cases([{}, {"bf16": {"enabled": True}}], quick=1):
        for zero in range(4):
            engine = engine_of(zero, SCHEDULES[zero % 3], more=kind)
            train(engine, range(2))
            path = folder / f"{len(kind)}-{zero}"
            engine.save_checkpoint(path)
            after = train(engine, range(2, 5)), weights_of(engine)
            for other in ranks.cases([(zero + 1) % 4, zero, (zero + 2) % 4], quick=1):
                again = engine_of(other, SCHEDULES[zero % 3], more=kind)
                with torch.no_grad(), GatheredParameters(again.module.parameters(), 0):
                    for each in again.module.parameters():
                        each.zero_()
                again.load_checkpoint(path)
                assert (train(again, range(2, 5)), weights_of(again)) == after, (zero, other)


test_two = ranks.tests_of(__file__, 2, is_long=True)
test_four = ranks.tests_of(__file__, 4)
test_four_all = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
