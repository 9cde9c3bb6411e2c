"""What goes wrong with a PipelineModule: by which words, and on which ranks."""

from __future__ import annotations

import json

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import WIDTH, Block, Embedding, batches, language_model, loss_fn, to_logits

import penstock
from penstock.pipe import (
    LayerSpec,
    PipeDataParallelTopology,
    PipelineModule,
    PipeModelDataParallelTopology,
    TiedLayerSpec,
)
from penstock.pipe.engine import PipelineError

WORLD_SIZE = 2
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
}


def _engine(layers=None, config=CONFIG, **options):
    module = PipelineModule(
        layers or language_model(), num_stages=2, **{"loss_fn": loss_fn, **options}
    )
    engine = penstock.initialize(model=module, config=config)[0]
    dist.barrier()  # So that no rank fails in a step while another still makes its engine.
    return engine


def _step(engine, lengths=(5,) * 4):
    return engine.train_batch(batches(0, lengths))


def _fails_on_one(failing, error, words, function):
    """`error` where it happens, and CommError on the other rank; the same words on both."""
    with pytest.raises((error, penstock.CommError)) as caught:
        function()
    here = dist.get_rank() == failing
    assert isinstance(caught.value, error if here else penstock.CommError), caught.value
    assert here or f"rank {failing}" in str(caught.value)
    for word in words:
        assert word in str(caught.value), caught.value


class Raises(torch.nn.Module):
    def __init__(self, where):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.where = where

    def forward(self, x):
        if self.where == "forward":
            raise KeyError("in my forward")
        x = self.linear(x)
        if self.where == "backward" and x.requires_grad:
            x.register_hook(self.hook)
        return {"x": x} if self.where == "dict" else [x] if self.where == "list" else x

    def hook(self, gradient):
        raise KeyError("in my backward")


def check_a_layer_that_raises(group):
    for failing, cut in [(0, 3), (1, 1)]:
        for where in ("forward", "backward"):
            layers = [Embedding(), LayerSpec(Block), LayerSpec(Raises, where), LayerSpec(Block)]
            layers.append(torch.nn.Linear(WIDTH, 17))
            engine = _engine(layers, partition_method=[0, cut, 5])
            _fails_on_one(failing, KeyError, [f"in my {where}"], lambda e=engine: _step(e))
            with pytest.raises(penstock.CommError, match=f"in my {where}"):  # It is over.
                _step(engine)


class Unmade(torch.nn.Module):
    def __init__(self, failing):
        super().__init__()
        if dist.get_rank() == failing:
            raise KeyError("no weights here")


def check_a_rank_that_fails_before_it_connects(group):
    for failing in range(2):
        layers = [Embedding(), LayerSpec(Unmade, failing), torch.nn.Linear(WIDTH, 17)]
        _fails_on_one(failing, KeyError, ["no weights here"], lambda each=layers: _engine(each))
        batch = 10 if dist.get_rank() == failing else 8
        config = {**CONFIG, "train_batch_size": batch}
        words = ["train_batch_size = 10: must be"]
        _fails_on_one(failing, penstock.ConfigError, words, lambda c=config: _engine(config=c))
    _step(_engine())  # The ranks still meet.


def check_what_cannot_cross_stages(group):
    for where, words in [("dict", "layer 1 (Raises) returned a dict"), ("list", "a list")]:
        engine = _engine(
            [Embedding(), LayerSpec(Raises, where), torch.nn.Linear(WIDTH, 17)],
            partition_method=[0, 2, 3],
        )
        _fails_on_one(0, TypeError, [words, "a tuple of tensors"], lambda e=engine: _step(e))


def check_data_that_ends_on_one_rank(group):
    for failing in range(2):
        engine = _engine()
        lengths = [5] * (3 if dist.get_rank() == failing else 4)
        words = [f"the data of stage {failing}", "in step 0, ended after 3 of 4 microbatches"]
        _fails_on_one(failing, penstock.Error, words, lambda e=engine, n=lengths: _step(e, n))


def check_data_that_is_none(group):
    engine = _engine()
    _fails_on_one(
        0,
        TypeError,
        ["gave a Tensor", "set_batch_fn"],
        lambda: engine.train_batch(
            iter([torch.ones(2, 3)] * 4) if dist.get_rank() == 0 else batches(0, [5] * 4)
        ),
    )
    with pytest.raises(penstock.Error, match="no data"):
        _engine().train_batch()


def check_a_loss_that_is_missing(group):
    engine = _engine(loss_fn=None)
    _fails_on_one(1, penstock.ConfigError, ["no loss_fn", "(2, 5, 17)"], lambda: _step(engine))


def check_a_gradient_that_is_not_finite(group):
    engine = _engine()
    if dist.get_rank() == 0:
        engine.module.get_parameter("1.net1.weight").data.fill_(float("nan"))
    before = engine.module.get_parameter("tied_modules.embedding.weight").clone()
    with pytest.raises(penstock.Error, match="step 0: the gradient norm is nan") as caught:
        _step(engine)
    assert "the weights are as before this step" in str(caught.value)
    after = engine.module.get_parameter("tied_modules.embedding.weight")
    assert torch.equal(before, after)


def check_ranks_that_differ(group):
    rank = dist.get_rank()
    for config, words in [
        ({"gradient_accumulation_steps": 4 + rank}, "microbatches="),
        ({"gradient_clipping": float(rank)}, "gradient_clipping="),
        ({"schedule": "gpipe" if rank else "1f1b"}, "gpipe"),
    ]:
        with pytest.raises(penstock.CommError, match=rf"do not run the same.*{words}"):
            _engine(config={**CONFIG, **config})
    with pytest.raises(penstock.CommError, match="partition="):
        _engine(partition_method=[0, 2 + rank, 9])


def check_what_a_pipeline_does_not_do(group):
    engine = _engine()
    for call in (engine.forward, engine.backward, engine.step):
        with pytest.raises(PipelineError, match="use train_batch"):
            call()
    with torch.no_grad(), pytest.raises(RuntimeError, match="use eval_batch"):
        _step(engine)
    with pytest.raises(ValueError, match="reduce_output is 'sum'"):
        engine.eval_batch(iter([]), reduce_output="sum")
    with pytest.raises(ValueError, match="num_micro_batches is 0, must be at least 1"):
        engine.eval_batch(iter([]), num_micro_batches=0)
    with pytest.raises(RuntimeError, match="this rank has layers"):
        engine.module(torch.zeros(1, 1))


def check_modules_that_cannot_be_cut(group):
    block = LayerSpec(Block)
    for words, layers, options in [
        ("cannot cut 1 layer into 2 stages", [block], {}),
        ("cannot cut 3 layers into 4 stages", [block] * 3, {"schedule": "zbv"}),
        ("num_stages is 3, must divide the number of ranks, 2", [block] * 4, {"num_stages": 3}),
        ("needs num_stages or topology", [block] * 4, {"num_stages": None}),
        (
            "is for 4 ranks of 2",
            [block] * 4,
            {"num_stages": None, "topology": PipeDataParallelTopology(2, 2)},
        ),
        (
            "pipe(1) x data(1) x model(2)",
            [block] * 4,
            {"num_stages": None, "topology": PipeModelDataParallelTopology(1, 2, 1)},
        ),
        (
            "type:Nothing matches no layer: there are Block",
            [block] * 2,
            {"partition_method": "type:Nothing"},
        ),
        ("type:( is no pattern", [block] * 2, {"partition_method": "type:("}),
        (
            "partition_method is 'best', must be \"uniform\"",
            [block] * 2,
            {"partition_method": "best"},
        ),
        ("partition bounds [0, 3]: 2 stages", [block] * 3, {"partition_method": [0, 3]}),
        ("nearest", [block] * 2, {"schedule": "1f1c"}),
        (
            'has no parameter "wait"',
            [
                TiedLayerSpec("e", Embedding),
                TiedLayerSpec("e", torch.nn.Linear, WIDTH, 17, tied_weight_attr="wait"),
            ],
            {},
        ),
        (
            "the first layer of this key has (17, 8)",
            [TiedLayerSpec("e", Embedding), TiedLayerSpec("e", torch.nn.Linear, 3, 3)],
            {},
        ),
    ]:
        with pytest.raises(penstock.Error) as caught:
            PipelineModule(layers, **{"num_stages": 2, **options})
        if words != "nearest":
            assert words in str(caught.value), caught.value
    for words, make in [
        ("a LayerSpec is of 3", lambda: LayerSpec(3)),
        ("layers[1] is 7", lambda: PipelineModule([block, 7], num_stages=2)),
    ]:
        with pytest.raises(TypeError) as caught:
            make()
        assert words in str(caught.value)


def check_configurations(group):
    def refused(words, **config):
        # Of two ranks that are wrong alike, one may hear of the other's error first.
        with pytest.raises(penstock.Error) as caught:
            _engine(config={**CONFIG, **config})
        for word in words if isinstance(words, tuple) else (words,):
            assert word in str(caught.value), caught.value

    refused('unknown key "train_batch_sise"; did you mean "train_batch_size"?', train_batch_sise=8)
    refused(
        ('unknown key "grandient_clipping"', 'unknown key "warmup" in scheduler'),
        grandient_clipping=1,
        scheduler={"warmup": 3},
    )
    refused("train_batch_size = 10: must be a multiple of train_micro", train_batch_size=10)
    refused("gradient_clipping = -1: must be at least 0", gradient_clipping=-1)
    refused("gradient_accumulation_steps = 0: must be", gradient_accumulation_steps=0)
    both = {key: {"enabled": True} for key in ("fp16", "bf16")}
    refused("bf16.enabled is true, too; take one of them", **both)
    refused("zero_optimization.stage = 4: must be in [0, 3]", zero_optimization={"stage": 4})
    refused("pipeline.stages is 4", pipeline={"stages": 4})
    refused("its argument partition_method", pipeline={"partition": "uniform"})
    refused("must be Adam, AdamW, SGD", optimizer={"type": "Adan"})
    refused("params.beta: SGD has no such", optimizer={"type": "SGD", "params": {"beta": 1}})
    refused("use gradient_clipping", optimizer={"type": "SGD", "params": {"max_grad_norm": 1}})
    refused('scheduler.type = "Warmup": must be', scheduler={"type": "Warmup"})
    refused(
        "WarmupDecayLR has no such argument",
        scheduler={"type": "WarmupDecayLR", "params": {"wormup": 1}},
    )
    refused("cannot train", schedule="forward_only")


def check_configuration_files(group):
    import os
    from pathlib import Path

    folder = Path(os.environ["STORE"]).parent
    path = folder / f"config-{dist.get_rank()}.json"
    for text, words in [
        ('{"train_batch_size": 8, "train_batch_size": 9}', 'duplicate key "train_batch_size"'),
        ("{", ":1:2: "),
        ("[]", "expected an object"),
    ]:
        path.write_text(text)
        with pytest.raises((penstock.ConfigError, penstock.ParseError)) as caught:
            _engine(config=path)
        assert words in str(caught.value)
    with pytest.raises(penstock.ConfigError, match="No such file"):
        _engine(config=folder / "none.json")
    path.write_text(json.dumps(CONFIG))
    _step(_engine(config=str(path)))


def check_models_of_another_kind(group):
    with pytest.raises(penstock.ConfigError, match="needs a config"):
        penstock.initialize(model=PipelineModule(language_model(), num_stages=2))


def check_ties_are_needed(group):
    """Without one key the two embeddings go apart: so the tests of ties can fail."""
    layers = language_model()
    layers[-1] = TiedLayerSpec("other", Embedding, forward_fn=to_logits)
    engine = _engine(layers)
    _step(engine)
    names = [name for name, _ in engine.module.named_parameters() if "tied" in name]
    assert all(("embedding" in name) == engine.is_first_stage() for name in names)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
