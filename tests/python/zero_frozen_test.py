"""Adapters beside frozen parameters of any type, which ZeRO 3 spreads like trained ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.nn import functional
from zero_models import WORDS, loss_of, words_of

import penstock
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from penstock.zero.partition_parameters import GatheredParameters, Init, ZeroParamStatus

WIDTH, RANK, STEPS = 16, 2, 6
AWAY = ZeroParamStatus.NOT_AVAILABLE


def frozen(values):
    return torch.nn.Parameter(values, requires_grad=False)


class Adapted(torch.nn.Module):
    """x + tanh(W x + b) + B A x, of which A and B are trained (LoRA, arXiv 2106.09685)."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.base = torch.nn.Linear(width, width).requires_grad_(False)
        self.down = torch.nn.Parameter(torch.rand(RANK, width) - 0.5)
        self.up = torch.nn.Parameter(torch.rand(width, RANK) - 0.5)

    def forward(self, x):
        adapted = functional.linear(functional.linear(x, self.down), self.up)
        return x + self.base(x).tanh() + adapted


class OfAllTypes(torch.nn.Module):
    """Frozen parameters that no gradient can be for, and some that are not of the model's type."""

    def __init__(self):
        super().__init__()
        shape = (WIDTH, WIDTH)
        self.eighths = frozen(torch.randint(-8, 8, shape, dtype=torch.int8))
        self.mask = frozen(torch.rand(shape) < 0.5)
        self.order = frozen(torch.stack([torch.randperm(WIDTH) for _ in range(WIDTH)]))
        self.short = frozen(torch.randn(shape).bfloat16())
        self.shorter = frozen(torch.randn(shape).to(torch.float8_e4m3fn))
        self.waves = frozen(torch.randn(shape, dtype=torch.complex64))
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x + functional.linear(x, self.eighths.to(x.dtype) / 8 * self.mask).tanh()
        x = x + x[..., self.order[3]] * self.scale
        weight = self.short.to(x.dtype) + self.shorter.to(x.dtype) + self.waves.real.to(x.dtype)
        return x + functional.linear(x, weight).tanh()


class Table(torch.nn.Module):
    """A frozen embedding, which is the head's weight, too."""

    def __init__(self):
        super().__init__()
        self.weight = frozen(torch.randn(WORDS, WIDTH))

    def forward(self, words):
        return functional.embedding(words, self.weight)


def to_logits(table, x):
    return functional.linear(x, table.weight)


class Frozen(torch.nn.Linear):
    """All of it, and large beside the others."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.requires_grad_(False)


class Adapters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = Table()
        self.blocks = torch.nn.Sequential(Adapted(), Frozen(), OfAllTypes(), Adapted())

    def forward(self, words):
        return to_logits(self.table, self.blocks(self.table(words)))


def config_of(stage, more=None):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 256,
            "stage3_param_persistence_threshold": WIDTH,
            "stage3_max_live_parameters": 800,
            "stage3_prefetch_bucket_size": 300,
        },
        **(more or {}),
    }


def adapters(seed=0):
    torch.manual_seed(seed)
    return Adapters()


def engine_of(model, stage, more=None):
    """The optimizer is given all parameters, as scripts do."""
    parameters = model.parameters()
    return penstock.initialize(
        model=model, model_parameters=parameters, config=config_of(stage, more)
    )[0]


def train(engine, steps=STEPS):
    found = []
    for step in range(2 * steps):
        words, labels = words_of(step, dist.get_rank())
        loss = loss_of(engine(words), labels)
        engine.backward(loss)
        engine.step()
        found.append((loss.item(), engine.get_global_grad_norm()))
    return found


def bits_of(state):
    """By name, type and bytes of a tensor."""
    return {
        name: (each.dtype, each.detach().flatten().view(torch.uint8).tolist())
        for name, each in state.items()
    }


def check_stages_train_to_the_same_bits(group):
    for more in ({}, {"bf16": {"enabled": True}}):
        expected = None
        for stage in range(4):
            engine = engine_of(adapters(seed=dist.get_rank()), stage, more)
            found = train(engine), bits_of(engine.module_state_dict())
            expected = expected or found
            assert found == expected, stage
            if stage == 3 and group.size() > 1:
                assert engine.paging["faults"] > 0 and engine.paging["drops"] > 0
        assert expected[0][-1][0] < expected[0][0][0]
        if not more:  # Frozen values are those of rank 0.
            given = bits_of(adapters().state_dict())
            stay = {name for name in given if given[name] == expected[1][name]}
            ours = adapters().named_parameters()
            assert stay == {name for name, each in ours if not each.requires_grad}


def check_they_have_no_gradient_and_nothing_updates_them(group):
    engine = engine_of(adapters(), 3)
    of_optimizer = []

    def look(optimizer, args, kwargs):
        of_optimizer.extend(p for group in optimizer.param_groups for p in group["params"])

    engine.optimizer.register_step_pre_hook(look)
    train(engine, 1)
    assert all(each.grad is None for each in engine.parameters() if not each.requires_grad)
    parts = torch.tensor([sum(each.numel() for each in of_optimizer)])
    dist.all_reduce(parts, group=group)
    assert parts.item() == sum(p.numel() for p in engine.parameters() if p.requires_grad)


def check_attributes_and_reads_outside_of_a_step(group):
    model = adapters()
    whole = {name: each.detach().clone() for name, each in model.named_parameters()}
    engine_of(model, 3)
    for name, each in model.named_parameters():
        stays = each.numel() <= WIDTH or group.size() == 1
        assert each.ds_status is (ZeroParamStatus.AVAILABLE if stays else AWAY), name
        assert (each.ds_shape, each.ds_numel) == (whole[name].shape, whole[name].numel())
        assert (each.dtype, each.ds_tensor.dtype) == (whole[name].dtype,) * 2
        parts = [None] * group.size()
        dist.all_gather_object(parts, each.ds_tensor.view(torch.uint8).tolist(), group=group)
        values = parts[0] if stays else [value for part in parts for value in part]
        assert values == whole[name].flatten().view(torch.uint8).tolist(), name
    if group.size() == 1:
        return
    eighths = model.blocks[2].eighths
    assert eighths.tolist() == whole["blocks.2.eighths"].tolist()  # It comes, and goes.
    assert eighths.ds_status is AWAY
    assert repr(eighths) == (
        f"Parameter blocks.2.eighths: (16, 16), torch.int8, spread over {group.size()} ranks"
    )


def check_gathered_parameters(group):
    last = group.size() - 1
    model = adapters()
    engine = engine_of(model, 3)
    before = bits_of(adapters().state_dict())
    with GatheredParameters(model.parameters()):
        assert bits_of(model.state_dict()) == before
    eighths, mask = model.blocks[2].eighths, model.blocks[2].mask
    with GatheredParameters([eighths, mask], modifier_rank=last):
        if dist.get_rank() == last:
            eighths.fill_(7)
            mask.logical_not_()
    after = engine.module_state_dict()
    assert (after["blocks.2.eighths"] == 7).all()
    assert torch.equal(after["blocks.2.mask"], ~adapters().blocks[2].mask)
    changed = {name for name, bits in bits_of(after).items() if bits != before[name]}
    assert changed == {"blocks.2.eighths", "blocks.2.mask"}
    train(engine, 1)
    if group.size() == 1:
        return
    words = r'(?s)"blocks.2.mask": in-place modification .* modifier_rank=0'
    with pytest.raises(penstock.Error, match=words), GatheredParameters(mask):
        mask.logical_not_()


def check_one_that_a_layer_changes(group):
    if group.size() == 1:
        return
    model = adapters()

    def count(module, args):
        module.eighths.add_(1)

    model.blocks[2].register_forward_pre_hook(count)
    engine = engine_of(model, 3)
    with pytest.raises(penstock.Error, match=r'"blocks.2.eighths" was changed in place'):
        train(engine, 1)


def check_one_that_is_unfrozen_later(group):
    for stage in (0, 3):
        model = adapters()
        engine = engine_of(model, stage)
        train(engine, 1)
        dist.barrier()  # The failure of a rank that is ahead would end the step of this one.
        model.blocks[1].weight.requires_grad_(True)
        with pytest.raises(penstock.Error, match=r'"blocks.1.weight" requires a gradient now'):
            train(engine, 1)
    del group


def check_trained_ones_may_be_frozen_later(group):
    states = []
    for stage in (0, 3):
        engine = engine_of(adapters(), stage)
        train(engine, 1)
        engine.module.blocks[0].requires_grad_(False)
        before = engine.module_state_dict()
        train(engine, 2)
        after = engine.module_state_dict()
        assert torch.equal(before["blocks.0.up"], after["blocks.0.up"])
        assert not torch.equal(before["blocks.3.up"], after["blocks.3.up"])
        states.append(bits_of(after))
    assert states[0] == states[1]
    del group


def check_init_spreads_them(group):
    expected = engine_of(adapters(), 0)
    losses = train(expected)
    for stage in (1, 3):
        torch.manual_seed(dist.get_rank())
        with Init(config_dict_or_path=config_of(3)):
            model = Adapters()
        away = [name for name, each in model.named_parameters() if each.ds_status is AWAY]
        assert len(away) == (len(list(model.parameters())) if group.size() > 1 else 0)
        engine = engine_of(model, stage)
        assert train(engine) == losses
        assert bits_of(engine.module_state_dict()) == bits_of(expected.module_state_dict())


def bytes_here(parameters):
    """Of parameters that are here, and of the parts of all others, padding included."""
    with torch._C.DisableTorchFunctionSubclass():
        storages = [each.untyped_storage() for each in parameters]
    storages += [each.ds_tensor.untyped_storage() for each in parameters]
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def check_a_rank_has_its_part_of_them(group):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Adapted(256) for _ in range(6)))
    large = sum(each.numel() for each in model.parameters() if each.numel() > 256)
    small = sum(each.numel() for each in model.parameters() if each.numel() <= 256)
    more = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 256}}
    more["zero_optimization"] |= {"stage3_max_live_parameters": 2 * 65536, "reduce_bucket_size": 1}
    engine = engine_of(model, 3, more)
    for step in range(4):
        assert bytes_here(list(model.parameters())) == pytest.approx(
            4 * (large / group.size() + small), rel=0.02
        )
        engine.backward(engine(torch.full((4, 256), step / 4)).pow(2).mean())
        engine.step()
        if group.size() > 1:
            assert 4 * 65536 < engine.paging["peak_bytes"] <= 4 * 2 * 65536


SCHEDULES = [
    {"name": "1f1b"},
    {"name": "interleaved_1f1b", "stages_per_rank": 2},
    {"name": "zbv"},
]


def pipeline_of(stage, schedule, layers, more=None):
    torch.manual_seed(0)
    module = PipelineModule(
        layers,
        num_stages=max(1, dist.get_world_size() // 2),
        loss_fn=loss_of,
        partition_method="uniform",
    )
    config = config_of(stage, {"schedule": schedule, "gradient_accumulation_steps": 4})
    return penstock.initialize(model=module, config={**config, **(more or {})})[0]


def tied_ends(*between):
    first = TiedLayerSpec("table", Table)
    return [first, *between, TiedLayerSpec("table", Table, forward_fn=to_logits)]


def layers_of():
    """Frozen parameters are tied, of a module that is in the list twice, and all of a layer's."""
    torch.manual_seed(1)
    again = Adapted()
    kinds = (Adapted, OfAllTypes, Frozen, Frozen, Adapted)
    return tied_ends(again, *map(LayerSpec, kinds), again)


def layers_with_all_to_train_in_one_place():
    """Most stages have nothing to train, and with two stages or more a rank has not."""
    return tied_ends(*map(LayerSpec, (Frozen, Frozen, Adapted, Adapted, *5 * [Frozen])))


def train_pipeline(engine, steps=STEPS):
    found = []
    for step in range(steps):
        batches = (words_of(100 * step + i, engine.dp_rank) for i in range(4))
        found.append((engine.train_batch(batches).item(), engine.get_global_grad_norm()))
    return found


def weights_of(engine):
    with GatheredParameters(engine.module.parameters()):
        return bits_of(engine.module.state_dict())


def check_pipelines_train_to_the_same_bits(group):
    if group.size() == 1:
        return
    for schedule in SCHEDULES:
        expected = None
        for stage in range(4):
            engine = pipeline_of(stage, schedule, layers_of())
            found = train_pipeline(engine), weights_of(engine)
            expected = expected or found
            assert found == expected, (schedule, stage)
            assert all(each.grad is None for each in engine.module.parameters())
        away = {n for n, p in engine.module.named_parameters() if p.ds_status is AWAY}
        frozen_here = engine.module.named_parameters()
        large = {n for n, p in frozen_here if not p.requires_grad and p.numel() > WIDTH}
        assert large and large <= away
        assert expected[0][-1][0] < expected[0][0][0]
        assert engine._replicated.held.paging["faults"] > 0


def check_pipelines_with_ranks_that_train_nothing(group):
    if group.size() == 1:
        return
    for schedule in SCHEDULES:
        expected = None
        for stage in (0, 3):
            engine = pipeline_of(stage, schedule, layers_with_all_to_train_in_one_place())
            found = train_pipeline(engine), weights_of(engine)
            expected = expected or found
            assert found == expected, (schedule, stage)
        assert expected[0][-1][0] < expected[0][0][0]


def check_a_rank_of_a_pipeline_has_its_part_of_them(group):
    if group.size() == 1:
        return
    for schedule in SCHEDULES[:2]:
        more = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 256}}
        more["zero_optimization"] |= {"stage3_max_live_parameters": 1, "reduce_bucket_size": 1}
        layers = [LayerSpec(torch.nn.Linear, 1, 256), *(LayerSpec(Adapted, 256) for _ in range(7))]
        engine = pipeline_of(3, schedule, layers, more)
        parameters = list(engine.module.parameters())
        large = sum(each.numel() for each in parameters if each.numel() > 256)
        small = sum(each.numel() for each in parameters if each.numel() <= 256)
        assert bytes_here(parameters) == pytest.approx(4 * (large / 2 + small), rel=0.02)


def check_pipelines_go_on_from_checkpoints(group):
    if group.size() == 1:
        return
    folder = Path(os.environ["STORE"]).with_name(f"frozen-{group.size()}")
    for stage in (0, 3):
        engine = pipeline_of(stage, SCHEDULES[1], layers_of())
        train_pipeline(engine, 2)
        engine.save_checkpoint(folder / str(stage))
        after = train_pipeline(engine, 2), weights_of(engine)
        again = pipeline_of(3 - stage, SCHEDULES[1], layers_of())
        with GatheredParameters(again.module.parameters(), 0), torch.no_grad():
            for each in again.module.parameters():
                each.zero_()
        again.load_checkpoint(folder / str(stage))
        assert (train_pipeline(again, 2), weights_of(again)) == after


def check_one_of_a_pipeline_that_is_unfrozen_later(group):
    if group.size() == 1:
        return
    engine = pipeline_of(3, SCHEDULES[0], layers_of())
    train_pipeline(engine, 1)
    dist.barrier()
    for name, each in engine.module.named_parameters():
        if name.endswith("base.weight"):
            each.requires_grad_(True)
    with pytest.raises(penstock.Error, match=r'base.weight" requires a gradient now'):
        train_pipeline(engine, 1)


class FrozenOnTheLastRank(Adapted):
    def __init__(self):
        super().__init__()
        self.requires_grad_(dist.get_rank() != dist.get_world_size() - 1)


def check_replicas_of_a_pipeline_that_freeze_others(group):
    if group.size() == 1:
        return
    layers = tied_ends(*map(LayerSpec, 4 * [FrozenOnTheLastRank]))
    words = rf"has parameter .*float32, rank {group.size() - 1} has parameter .*, frozen"
    with pytest.raises(penstock.CommError, match=words):
        pipeline_of(0, SCHEDULES[0], layers)


test_one, test_two = (ranks.tests_of(__file__, size) for size in (1, 2))
test_four = ranks.tests_of(__file__, 4, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
