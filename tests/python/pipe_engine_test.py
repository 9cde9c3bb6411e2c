"""penstock.pipe's engine on two ranks, beside the unsplit model in one process."""

from __future__ import annotations

import contextlib
import io
import math

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import (
    MICROBATCHES,
    WIDTH,
    Block,
    Embedding,
    Reference,
    Unsplit,
    batches,
    compare,
    config,
    engine_of,
    half,
    language_model,
    loss_fn,
    reference_of,
    sgd,
)

import penstock
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec

WORLD_SIZE = 2
STEPS = 10


def _check_schedule(name, **section):
    layers = language_model(blocks=7)
    engine = engine_of(layers, {"schedule": {"name": name, **section}})
    compare(engine, reference_of(layers))


def check_1f1b(group):
    _check_schedule("1f1b")


def check_interleaved(group):
    _check_schedule("interleaved_1f1b", stages_per_rank=2)


def check_zbv(group):
    _check_schedule("zbv")


def check_the_others(group):
    for name in ("gpipe", "zb_h1", "dualpipev", "hanayo"):
        layers = language_model(blocks=7)
        engine = engine_of(layers, schedule=name)
        compare(engine, reference_of(layers), steps=2)


def check_adam_and_a_course_of_the_learning_rate(group):
    layers = language_model()
    course = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}
    engine = engine_of(
        layers,
        {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "scheduler": course},
    )
    reference = reference_of(layers, lambda each: torch.optim.AdamW(each, lr=0.01))
    for step in range(STEPS):
        rate = 0.01 * min(max(0, step - 1), 4) / 4
        assert engine.get_lr() == [pytest.approx(rate)]
        for each in reference.optimizer.param_groups:
            each["lr"] = rate
        data = list(batches(step, [5] * MICROBATCHES))
        assert engine.train_batch(iter(data)).item() == pytest.approx(
            reference.step(data), rel=1e-4
        )
    assert engine.global_samples == STEPS * 2 * MICROBATCHES


def check_shapes_may_change(group):
    layers = language_model()
    engine, reference = engine_of(layers), reference_of(layers)
    for step, lengths in enumerate([(5, 5, 5, 5), (9, 2, 7, 3), (3, 3, 12, 1), (4, 4, 4, 4)]):
        data = list(batches(step, lengths))
        assert engine.train_batch(iter(data)).item() == pytest.approx(
            reference.step(data), rel=1e-5
        )
        data = list(batches(100 + step, lengths[::-1]))
        assert engine.eval_batch(iter(data)).item() == pytest.approx(
            reference.evaluate(data), rel=1e-5
        )
        reference.compare(engine.module)


def check_evaluation_between_steps_changes_nothing(group):
    layers = language_model()
    engine, reference = engine_of(layers), reference_of(layers)
    for step in range(3):
        for count in (1, MICROBATCHES, 7):
            data = list(batches(50 + step, [5] * count))
            loss = engine.eval_batch(iter(data), num_micro_batches=count)
            assert loss.item() == pytest.approx(reference.evaluate(data), rel=1e-5)
        data = list(batches(step, [5] * MICROBATCHES))
        engine.train_batch(iter(data))
        reference.step(data)
        reference.compare(engine.module)
    assert engine.module.training


def check_what_evaluation_returns(group):
    layers = language_model()
    engine, reference = engine_of(layers), reference_of(layers)
    data = list(batches(0, [5] * MICROBATCHES))
    loss, logits = engine.eval_batch(iter(data), return_logits=True)
    outputs = engine.eval_batch(iter(data), compute_loss=False)
    losses = engine.eval_batch(iter(data), reduce_output=None)
    here = engine.eval_batch(iter(data), bcast_loss=False)
    assert loss.item() == pytest.approx(reference.evaluate(data))
    if not engine.is_last_stage():
        assert logits is None and outputs is None and losses is None and here is None
        return
    assert here.item() == pytest.approx(loss.item())
    for found in (logits, outputs):
        for each, (inputs, _) in zip(found, data, strict=True):
            torch.testing.assert_close(each, reference.model(inputs).detach())
    assert sum(losses).item() / MICROBATCHES == pytest.approx(loss.item())


def check_clipping_is_by_the_norm_of_the_whole_model(group):
    """A coefficient of one stage's norm alone would be another one."""
    layers = [
        LayerSpec(Block),
        half,
        LayerSpec(Block, 64),
        LayerSpec(Block),
        *language_model()[-2:],
    ]
    layers = [TiedLayerSpec("embedding", Embedding), *layers]
    clipping = 0.05
    engine = engine_of(layers, {"gradient_clipping": clipping, **_plain_sgd()})
    reference = reference_of(layers, lambda each: torch.optim.SGD(each, lr=1.0), clipping=clipping)
    for step in range(3):
        before = {name: each.detach().clone() for name, each in engine.module.named_parameters()}
        data = list(batches(step, [5] * MICROBATCHES))
        engine.train_batch(iter(data))
        reference.step(data)
        norm = engine.get_global_grad_norm()
        assert norm == pytest.approx(reference.norm, rel=1e-6)
        assert norm > 2 * clipping
        mine = sum(
            (before[name] - each.detach()).double().square().sum().item()
            for name, each in engine.module.named_parameters()
        )
        assert mine**0.5 < 0.99 * clipping  # A part of the update that has this length.
        reference.compare(engine.module)


def _plain_sgd():
    return {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}


def check_partitions(group):
    layers = language_model(blocks=5)
    for method, parts in [
        ("uniform", [0, 5, 9]),
        ("UNIFORM", [0, 5, 9]),
        ("type:block", [0, 3, 9]),
        ([0, 2, 9], [0, 2, 9]),
        ([0, 8, 9], [0, 8, 9]),
    ]:
        engine = engine_of(layers, partition_method=method)
        assert engine.module.parts == parts
        compare(engine, reference_of(layers), steps=2)
    module = PipelineModule(
        [LayerSpec(Block, 2), LayerSpec(Block, 2), LayerSpec(Block, 90), half], num_stages=2
    )
    assert module.parts == [0, 2, 4]


def check_activation_checkpoints(group):
    for interval, more in [
        (2, {}),
        (1, {"checkpointable_layers": ["Block"]}),
        (3, {"activation_checkpoint_func": _checkpoint}),
    ]:
        layers = language_model()
        engine = engine_of(layers, activation_checkpoint_interval=interval, **more)
        compare(engine, reference_of(layers), steps=2)
    assert _checkpoint.calls > 0
    engine = engine_of(layers, {"pipeline": {"activation_checkpoint_interval": 2}})
    compare(engine, reference_of(layers), steps=1)


def _checkpoint(function, *values):
    _checkpoint.calls += 1
    return torch.utils.checkpoint.checkpoint(function, *values, use_reentrant=False)


_checkpoint.calls = 0


class Pair(torch.nn.Module):
    """Takes and gives a tuple: of the values, and a mask that no gradient goes through."""

    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.size = size

    def forward(self, value):
        x = value[0] if isinstance(value, tuple) else value
        x = self.linear(x)
        return (x, *[x > 0] * self.size)


def first_of(value):
    assert isinstance(value, tuple)
    return value[0]


def check_tuples_of_any_length_cross_stages(group):
    for size in (0, 1, 2):
        layers = [
            TiedLayerSpec("embedding", Embedding),
            LayerSpec(Pair, size),
            LayerSpec(Pair, size),
            first_of,
            *language_model()[-2:],
        ]
        for cut in (2, 3):  # In front of a layer, and of a function that insists on a tuple.
            engine = engine_of(layers, partition_method=[0, cut, 6])
            compare(engine, reference_of(layers), steps=2)


def check_layers_of_another_class_share_what_they_name(group):
    layers = [
        TiedLayerSpec("words", torch.nn.Embedding, 17, WIDTH),
        LayerSpec(Block),
        LayerSpec(Block),
        TiedLayerSpec("words", torch.nn.Linear, WIDTH, 17, tied_weight_attr="weight"),
    ]
    for cut in (1, 3):
        engine = engine_of(layers, partition_method=[0, cut, 4])
        torch.manual_seed(0)
        reference = Reference(whole_of(), sgd)
        for step in range(3):
            data = list(batches(step, [5] * MICROBATCHES))
            assert engine.train_batch(iter(data)).item() == pytest.approx(
                reference.step(data), rel=1e-5
            )


def whole_of():
    layers = [torch.nn.Embedding(17, WIDTH), Block(), Block(), torch.nn.Linear(WIDTH, 17)]
    layers[3].weight = layers[0].weight
    return layers


def check_a_module_that_stands_twice_is_one(group):
    def make():
        shared = Block()
        return [Embedding(), shared, half, shared, torch.nn.Linear(WIDTH, 17)]

    torch.manual_seed(0)
    layers = make()
    engine = engine_of(layers, partition_method=[0, 2, 5])
    torch.manual_seed(0)
    reference = Reference(make(), sgd)
    for step in range(3):
        data = list(batches(step, [5] * MICROBATCHES))
        assert engine.train_batch(iter(data)).item() == pytest.approx(
            reference.step(data), rel=1e-5
        )


def check_the_last_layer_may_be_the_loss(group):
    layers = [*language_model()[:-1], lambda x: x.square().mean()]
    torch.manual_seed(0)
    module = PipelineModule(layers, num_stages=2)
    engine, *_ = penstock.initialize(model=module, config=config())
    torch.manual_seed(0)
    reference = Reference(layers, sgd, loss=lambda output, _: output)
    for step in range(2):
        data = [(tokens, None) for tokens, _ in batches(step, [5] * MICROBATCHES)]
        loss = engine.train_batch(iter(data))
        assert loss.item() == pytest.approx(reference.step(data), rel=1e-5)


def check_layers_with_seeds_draw_the_same_wherever_they_are(group):
    found = []
    for cut in (2, 4):
        layers = [
            TiedLayerSpec("embedding", Embedding),
            LayerSpec(Block),
            LayerSpec(torch.nn.Dropout, 0.5),
            LayerSpec(Block),
            LayerSpec(torch.nn.Dropout, 0.5),
            *language_model()[-2:],
        ]
        torch.manual_seed(dist.get_rank())  # Does not matter.
        engine = engine_of(layers, seed_layers=True, partition_method=[0, cut, 7], seed=cut)
        data = [list(batches(step, [5] * MICROBATCHES)) for step in range(3)]
        found.append([engine.train_batch(iter(each)).item() for each in data])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def check_data_sets_and_loaders(group):
    layers = language_model()
    torch.manual_seed(0)
    data = [pair for seed in range(20) for pair in batches(seed, [5], samples=1)]
    data = [(tokens[0], labels[0]) for tokens, labels in data]
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_fn)
    engine, _, loader, _ = penstock.initialize(model=module, training_data=data, config=config())
    losses = [engine.train_batch().item() for _ in range(8)]  # 64 samples: several times round.
    assert len(loader) == 10 and losses[-1] < losses[0]
    engine.set_batch_fn(lambda batch: (batch["x"], batch["y"]))
    pairs = list(batches(0, [5] * MICROBATCHES))
    engine.train_batch(iter([{"x": x, "y": y} for x, y in pairs]))


def check_the_last_samples_are_dropped_if_the_configuration_says_so(group):
    data = [(tokens[0], labels[0]) for tokens, labels in batches(0, [5] * 5, samples=1)]
    for drops, sizes in ((False, [2, 2, 1]), (True, [2, 2])):
        engine = engine_of(language_model(), {"dataloader_drop_last": drops})
        engine.set_dataloader(engine.deepspeed_io(data))
        assert [len(tokens) for tokens, _ in engine.training_dataloader] == sizes
        assert math.isfinite(engine.train_batch().item())
    assert len(engine_of(language_model()).deepspeed_io(data)) == 3


def check_each_end_needs_its_half_of_the_data(group):
    layers = language_model()
    engine, reference = engine_of(layers), reference_of(layers)
    data = list(batches(0, [5] * MICROBATCHES))
    first = engine.is_first_stage()
    half = [(x, None) if first else (None, y) for x, y in data]
    assert engine.train_batch(iter(half)).item() == pytest.approx(reference.step(data), rel=1e-5)


def check_nothing_is_printed(group):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        engine = engine_of(language_model())
        engine.train_batch(batches(0, [5] * MICROBATCHES))
    assert out.getvalue() == ""


def check_optimizers_that_are_given(group):
    layers = language_model()
    torch.manual_seed(0)
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_fn)
    mine = sgd(module.parameters())
    course = torch.optim.lr_scheduler.StepLR(mine, step_size=1, gamma=0.5)
    engine, optimizer, _, scheduler = penstock.initialize(
        model=module, optimizer=mine, lr_scheduler=course, config=config()
    )
    assert optimizer is mine and scheduler is course
    engine.train_batch(batches(0, [5] * MICROBATCHES))
    assert engine.get_lr() == [0.1]
    engine, *_ = penstock.initialize(
        model=PipelineModule(layers, num_stages=2, loss_fn=loss_fn), optimizer=sgd, config=config()
    )
    assert isinstance(engine.optimizer, torch.optim.SGD)


def check_a_schedule_in_the_configuration_makes_the_layers_that_it_needs(group):
    layers = language_model(blocks=7)
    torch.manual_seed(0)
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_fn)
    early = sgd(module.parameters())
    with pytest.raises(penstock.Error, match=r"PipelineModule\(schedule"):
        penstock.initialize(model=module, optimizer=early, config=config(schedule="zbv"))
    torch.manual_seed(0)
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_fn, schedule="1f1b")
    with pytest.raises(penstock.ConfigError, match="say it in one place"):
        penstock.initialize(model=module, config=config(schedule="zbv"))


def check_one_stage_is_the_whole_model(group):
    """Two replicas of one stage."""
    layers = language_model()
    torch.manual_seed(0)
    module = PipelineModule(layers, num_stages=1, loss_fn=loss_fn)
    tokens, _ = next(batches(0, [5]))
    torch.manual_seed(0)
    torch.testing.assert_close(module(tokens), Unsplit(layers)(tokens))
    engine, *_ = penstock.initialize(model=module, config=config())
    reference = reference_of(layers)
    for step in range(3):
        data = [list(batches(10 * step + i, [5] * MICROBATCHES)) for i in range(2)]
        loss = engine.train_batch(iter(data[engine.dp_rank]))
        assert loss.item() == pytest.approx(reference.step(data[0] + data[1]), rel=1e-5)
        reference.compare(engine.module)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
