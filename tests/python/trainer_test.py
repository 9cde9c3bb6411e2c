"""penstock.Trainer: meshes whose ranks share layers, from Python."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import ranks

WORLD_SIZE = 4
PENSTOCK = Path(os.environ["PENSTOCK_BUILD"]) / "bin" / "penstock"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
STEPS = 4


def configuration(**more):
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.5,
        "seed": 7,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
        "model": {
            "type": "hugging_face",
            "path": "llama",
            "weights": "random",
            "sequence_length": 16,
        },
        **more,
    }


TRAINED = configuration(mesh={"pipe": 2, "tensor": 2}, data={"path": "text"})


def write_inputs(folder):
    three = {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 3}
    for name, config in (("llama", LLAMA), ("three", three)):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "text").write_text("the wheel turns and the water runs slow. " * 500)


def run_penstock(*words, folder=None):
    foreign = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PENSTOCK_LAUNCH")
    environment = {name: each for name, each in os.environ.items() if not name.startswith(foreign)}
    command = [str(PENSTOCK), *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def trained(tmp_path_factory):
    """Has `penstock train` make what the ranks compare with, before they start."""
    folder = tmp_path_factory.mktemp("trained")
    write_inputs(folder)
    run = {"steps": STEPS, "eval_batches": 1, "sample_bytes": 0, "sample_tokens": 0}
    config = {**TRAINED, "run": run, "checkpoint": {"save_interval": STEPS}}
    (folder / "train.json").write_text(json.dumps(config))
    run_penstock("train", "train.json", "--nproc", "4", "--run", "run", folder=folder)
    os.environ["TRAINED"] = str(folder / "run")


@contextmanager
def folder_of_ranks(name):
    """A folder that all ranks are in, with a model's config.json and a text."""
    import torch.distributed as dist

    before = Path.cwd()
    folder = Path(os.environ["STORE"]).with_name(name)
    if dist.get_rank() == 0:
        write_inputs(folder)
    dist.barrier()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        dist.barrier()


def batches(count):
    """Tokens and targets of whole steps, the same on every rank; some targets do not count."""
    import torch

    numbers = torch.Generator().manual_seed(3)
    for _ in range(count):
        tokens = torch.randint(256, (8, 17), generator=numbers)
        targets = tokens[:, 1:].clone()
        targets[:2, :5] = -100
        yield tokens[:, :-1], targets


def of_replica(trainer, values):
    return values.chunk(trainer.replicas)[trainer.replica]


def steps_of(trainer, count=STEPS):
    reports = [
        trainer.step(of_replica(trainer, tokens), of_replica(trainer, targets))
        for tokens, targets in batches(count)
    ]
    return [(each.step, each.loss, each.grad_norm) for each in reports]


def alone():
    """A group of this rank alone."""
    import torch.distributed as dist

    groups = [dist.new_group([rank]) for rank in range(WORLD_SIZE)]
    return groups[dist.get_rank()]


def check_has_the_bits_of_penstock_train(group):
    import torch.distributed as dist

    import penstock

    with folder_of_ranks("bits"):
        trainer = penstock.Trainer({**TRAINED, "run": {"steps": STEPS}}, group)
        assert trainer.mesh == {"pipe": 2, "data": 1, "context": 1, "tensor": 2}
        assert (trainer.replica, trainer.replicas, trainer.samples) == (0, 1, 8)
        reports = [trainer.step() for _ in range(STEPS)]
        trainer.save_checkpoint("python")
        if dist.get_rank() == 0:
            trained_by_penstock = Path(os.environ["TRAINED"])
            lines = (trained_by_penstock / "metrics.jsonl").read_text().splitlines()
            trained = [json.loads(line) for line in lines if "grad_norm" in line]
            assert [(each.loss, each.grad_norm) for each in reports] == [
                (each["loss"], each["grad_norm"]) for each in trained
            ]
            last = f"step-{STEPS:08}"
            checkpoints = [str(trained_by_penstock / "checkpoints" / last), f"python/{last}"]
            run_penstock("checkpoint", "diff", *checkpoints)


def check_every_mesh_has_the_bits_of_one_rank_with_invariant_sums(group):
    import torch

    import penstock

    with folder_of_ranks("invariant"):
        one_group = alone()
        sums = {"numerics": {"invariant": True}}
        one = penstock.Trainer(configuration(mesh={"pipe": 1}, **sums), one_group)
        whole = steps_of(one)
        names = ["model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"]
        for mesh, stage in [
            ({"tensor": 4}, 0),
            ({"data": 2, "tensor": 2}, 3),
            ({"pipe": 2, "tensor": 2}, 1),
        ]:
            zero = {"zero_optimization": {"stage": stage}}
            trainer = penstock.Trainer(configuration(mesh=mesh, **sums, **zero), group)
            assert steps_of(trainer) == whole, mesh
            for name in names:
                assert torch.equal(trainer.get(name), one.get(name)), (mesh, name)


def check_checkpoints_and_models_go_over_meshes(group):
    import torch
    import torch.distributed as dist

    import penstock

    with folder_of_ranks("saved") as folder:
        shared = penstock.Trainer(configuration(mesh={"data": 2, "tensor": 2}), group)
        steps_of(shared)
        shared.save_checkpoint("checkpoints")
        shared.save_model("tuned")
        other = penstock.Trainer(configuration(mesh={"tensor": 4}), group)
        assert other.load_checkpoint("checkpoints") == STEPS == other.steps_taken
        name = "model.layers.0.mlp.down_proj.weight"
        for state in ("weight", "exp_avg"):
            assert torch.equal(other.get(name, state), shared.get(name, state))
        if dist.get_rank() == 0:
            assert (folder / "tuned" / "config.json").exists()
        other.set(name, torch.ones(32, 64))
        assert torch.equal(other.get(name), torch.ones(32, 64))
        tokens, targets = next(batches(1))
        assert other.evaluate(tokens, targets) != shared.evaluate(
            of_replica(shared, tokens), of_replica(shared, targets)
        )


def check_a_folder_has_the_loss_of_transformers(group):
    import torch
    import torch.distributed as dist

    import penstock

    transformers = pytest.importorskip("transformers")
    with folder_of_ranks("folder") as folder:
        torch.manual_seed(5)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
        if dist.get_rank() == 0:
            model.save_pretrained(folder / "model")
        dist.barrier()
        config = configuration(mesh={"tensor": 4})
        config["model"] = {"type": "hugging_face", "path": "model", "sequence_length": 16}
        trainer = penstock.Trainer(config, group)
        tokens, targets = next(batches(1))
        logits = model(tokens).logits.flatten(0, 1)
        whole = torch.nn.functional.cross_entropy(logits, targets.flatten()).item()
        assert trainer.evaluate(tokens, targets) == pytest.approx(whole, rel=1e-5)


def refusal(call):
    import penstock

    with pytest.raises(penstock.Error) as caught:
        call()
    return str(caught.value)


def check_what_does_not_fit_is_refused_with_what_would(group):
    import torch

    import penstock

    with folder_of_ranks("refused"):
        said = refusal(lambda: penstock.Trainer(configuration(mesh={"tensors": 4}), group))
        assert 'unknown key "tensors" in mesh; did you mean "tensor"?' in said
        said = refusal(lambda: penstock.Trainer(configuration(mesh={"tensor": 3}), group))
        assert said.endswith(  # Behind "rank 1 failed: " where another rank was faster.
            "world size 4 is not a multiple of mesh.pipe 1 x mesh.tensor 3; use 3 or 6 processes, "
            "or mesh.tensor 1, 2 or 4"
        )
        config = configuration(mesh={"tensor": 4})
        config["model"]["path"] = "three"
        said = refusal(lambda: penstock.Trainer(config, group))
        assert "mesh.tensor = 4: ranks cannot share 3 heads" in said
        told = [None] * WORLD_SIZE
        torch.distributed.all_gather_object(told, said, group)
        assert all(each.endswith("note: sizes that work: 1, 2, 3") for each in told), told
        trainer = penstock.Trainer(configuration(mesh={"tensor": 4}), group)
        assert "call step(tokens, targets), or set data.path" in refusal(trainer.step)
        tokens, targets = next(batches(1))
        assert "or neither of them" in refusal(lambda: trainer.step(tokens))
        mine = tokens + torch.distributed.get_rank()
        assert re.search(
            r"ranks \d and \d share layers and were given different batches",
            refusal(lambda: trainer.step(mine % 256, targets)),
        )
        assert steps_of(trainer)[0][0] == 1


def check_a_configuration_that_is_wrong_on_one_rank_ends_all(group):
    import torch.distributed as dist

    import penstock

    with folder_of_ranks("one"):
        config = configuration(mesh={"tensor": 4})
        if dist.get_rank() == 2:
            config["mesh"] = {"tensors": 4}
        start_s = time.monotonic()
        said = refusal(lambda: penstock.Trainer(config, group))
        assert 'unknown key "tensors" in mesh' in said, said
        assert dist.get_rank() == 2 or said.startswith("rank 2 failed: ")
        assert time.monotonic() - start_s < ranks.GROUP_TIMEOUT.total_seconds() / 2


def check_an_engine_says_what_divides_modules(group):
    import torch

    import penstock

    config = {"train_batch_size": 4, "tensor_parallel": {"autotp_size": 2}}
    model = torch.nn.Linear(2, 2)
    assert refusal(lambda: penstock.initialize(model=model, config=config)) == (
        "config: tensor_parallel.autotp_size = 2: a module is computed whole on each rank; train a "
        "Hugging Face folder with penstock.Trainer and mesh.tensor, or divide modules by torch's "
        "DTensor in penstock.pipelining"
    )
    config["tensor_parallel"] = {"autotp_size": 1}
    penstock.initialize(model=model, config=config)
    said = refusal(lambda: penstock.initialize(model="llama", config=config))
    assert said.endswith("note: a Hugging Face folder is trained by penstock.Trainer")


test_check = ranks.tests_of(__file__, WORLD_SIZE)


if __name__ == "__main__":
    ranks.main(globals())
