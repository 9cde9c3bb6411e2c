#!/usr/bin/env python3
"""Low-rank adapters of a Hugging Face folder's model, against transformers and PEFT.

The adapters that `penstock train` saves are the same bits in every pipeline, in every stage of
ZeRO, and behind a resume.  They are those of a plain loop over transformers' model with the same
products beside its linears, and of PEFT's, which loads them.  Merged, they give the model's folder
back with their products added to their linears, and nothing else.
Usage: adapter_test.py PENSTOCK, run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers is not installed; without PEFT, its
part is passed over aloud.
Takes over 10 s: it imports transformers and PEFT, and trains in every layout.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import torch
from adapters import PREFIX, adapted_by_hand, adapted_by_peft
from folder_runs import TINY_GPT2, TINY_LLAMA, FolderRuns, expect_same, quiet, tensors, write_tokens

SIZES = {"vocab_size": 120, "bos_token_id": 0, "eos_token_id": 0}
UNDROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "llama": transformers.LlamaConfig(num_hidden_layers=2, **TINY_LLAMA, **SIZES),
    "gpt2": transformers.GPT2Config(n_layer=2, **TINY_GPT2, **UNDROPPED, **SIZES),
}
TARGETS = {"llama": "[qv]_proj|down_proj", "gpt2": "c_attn|c_proj"}
RANK, ALPHA = 4, 8.0
SEQUENCE, BATCH, STEPS = 16, 4, 20
OPTIMIZER = {"lr": 5e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
# In float; an update of AdamW is of the size of the learning rate, whatever the gradient's.
LOSS_BOUND, ADAPTER_BOUND = 1e-5, 1e-4


class Runs(FolderRuns):
    def __init__(self, penstock: str, folder: Path, family: str) -> None:
        tokens = torch.randint(0, SIZES["vocab_size"], (8 * BATCH * SEQUENCE + 1,))
        self.samples = tokens.unfold(0, SEQUENCE + 1, SEQUENCE)
        corpus = str(write_tokens(folder / "corpus.bin", tokens))
        self.adapter = {"rank": RANK, "alpha": ALPHA, "targets": TARGETS[family]}
        config = {
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": 1,
            "data": {"path": corpus, "format": "uint16", "shuffle": False, "validation": corpus},
            "optimizer": {"type": "AdamW", "params": OPTIMIZER},
            "run": {"steps": STEPS, "eval_batches": 1},
        }
        super().__init__(penstock, folder, config, {"sequence_length": SEQUENCE})
        self.base = self.make("base", MODELS[family])

    def train(self, pipe=1, replicas=1, adapter=None, **changes):
        model = {"adapter": self.adapter | (adapter or {})}
        return super().train(self.base, pipe, replicas, model=model, **changes)


def plain_loop(model, trained: dict[str, torch.nn.Parameter], samples: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(trained.values(), **OPTIMIZER)
    batches, losses = samples.split(BATCH), []
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def expect_near(what: str, runs: Runs, saved: Path, losses: list[float], trained) -> None:
    off = max(abs(a - b) for a, b in zip(runs.losses(), losses, strict=True))
    ours = tensors(saved)
    assert ours.keys() == trained.keys(), set(ours) ^ set(trained)
    worst = max((ours[name] - each.detach()).abs().max().item() for name, each in trained.items())
    print(f"{what}: losses differ by {off:.1e}, adapters by {worst:.1e}", flush=True)
    assert off <= LOSS_BOUND and worst <= ADAPTER_BOUND


def expect_merged(runs: Runs, adapters: Path, merged: Path) -> None:
    base, parts, whole = tensors(runs.base), tensors(adapters), tensors(merged)
    transformers.AutoModelForCausalLM.from_pretrained(merged)
    assert base.keys() == whole.keys(), set(base) ^ set(whole)
    for name, tensor in base.items():
        linear = PREFIX + name.removesuffix(".weight")
        if f"{linear}.lora_A.weight" not in parts:
            assert torch.equal(whole[name], tensor), name
            continue
        product = parts[f"{linear}.lora_B.weight"] @ parts[f"{linear}.lora_A.weight"]
        product = (product.T if "c_" in name else product) * (ALPHA / RANK)
        assert (whole[name] - tensor - product).abs().max() < 1e-6, name
        assert not torch.equal(whole[name], tensor), name


def check_export(runs: Runs, checkpoints: Path, one: Path) -> None:
    """The adapters of a checkpoint are those that the run saved; the model alone is refused."""

    def export(name: str, *words: str):
        command = [runs.penstock, "checkpoint", "export", checkpoints, runs.folder / name, *words]
        return subprocess.run(command, text=True, capture_output=True, check=False)

    done = export("exported", "--adapters")
    assert done.returncode == 0 and "exported: the adapters of" in done.stdout, done
    exported = runs.folder / "exported"
    expect_same(exported, one)
    files = (each / "adapter_config.json" for each in (exported, one))
    said, saved = (json.loads(file.read_text()) for file in files)
    assert set(said.pop("target_modules")) == set(saved.pop("target_modules"))
    assert saved.pop("base_model_name_or_path") == runs.base.name  # No path of this machine.
    assert said.pop("base_model_name_or_path") is None
    assert said == saved, (said, saved)
    done = export("refused")
    assert done.returncode == 2 and "--adapters writes the adapters" in done.stderr, done
    assert not (runs.folder / "refused").exists()


def check(penstock: str, folder: Path, family: str) -> None:
    runs = Runs(penstock, folder, family)

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(runs.base, dtype=torch.float32)

    still = {"type": "AdamW", "params": {"lr": 0.0}}
    start = runs.train(optimizer=still)
    one = runs.train()
    model = load()
    trained = adapted_by_hand(model, start, ALPHA / RANK)
    losses = plain_loop(model, trained, runs.samples)
    expect_near(f"{family}, by hand", runs, one, losses, trained)
    try:
        model, trained = adapted_by_peft(load(), start)
    except ImportError as error:
        print(f"passed over: {error}; PEFT was not compared", flush=True)
    else:
        losses = plain_loop(model, trained, runs.samples)
        expect_near(f"{family}, PEFT", runs, one, losses, trained)

    expect_same(runs.train(pipe=2), one)
    expect_same(runs.train(pipe=2, schedule={"name": "zb_h1"}), one)
    whole = runs.train(pipe=2, replicas=2)
    for stage in (1, 2, 3):
        expect_same(runs.train(pipe=2, replicas=2, zero_optimization={"stage": stage}), whole)
    expect_merged(runs, whole, runs.train(pipe=2, replicas=2, adapter={"merge": True}))

    dropped = {"dropout": 0.2}
    dropping = runs.train(adapter=dropped)
    assert not torch.equal(*(each[max(each)] for each in map(tensors, (dropping, one))))
    expect_same(runs.train(pipe=2, schedule={"name": "zb_h1"}, adapter=dropped), dropping)
    again = {"pipeline": {"activation_checkpoint_interval": 1}}
    expect_same(runs.train(adapter=dropped, **again), dropping)

    # Going on from what was saved.
    onward = {"path": str(one)}
    expect_same(runs.train(pipe=2, replicas=2, adapter=onward, optimizer=still), one)
    told = runs.train(adapter=onward | {"rank": RANK + 1}, fails=True)
    assert f"r = {RANK}: model.adapter.rank is {RANK + 1}" in told, told
    told = runs.train(adapter=onward | {"targets": "v_proj|c_attn"}, fails=True)
    assert "are not those that model.adapter.targets asks for" in told, told
    told = runs.train(adapter=onward | {"path": str(runs.base)}, fails=True)
    assert "has no adapter_config.json" in told, told

    kept = {"checkpoint": {"directory": str(folder / "kept"), "save_interval": STEPS // 2}}
    half = {"steps": STEPS // 2, "eval_batches": 1}
    runs.train(**kept, run=half)
    expect_same(runs.train(**kept, words=("--resume", "auto")), one)
    check_export(runs, folder / "kept", one)
    # Its last step has been taken: it only saves.
    words = ("--resume", "auto", "--set", "model.adapter.merge=true")
    expect_merged(runs, one, runs.train(**kept, words=words))

    told = runs.train(adapter={"targets": "query"}, fails=True)
    assert 'model.adapter.targets = "query": matches no linear of the model' in told, told
    assert "its linears are " + {"llama": "q_proj, k", "gpt2": "c_attn, c"}[family] in told, told
    told = runs.train(save=runs.base, fails=True)
    assert "adapters need a folder of their own" in told, told


def check_families(penstock: str, check_one: Callable[[str, Path, str], None]) -> None:
    torch.manual_seed(7)
    quiet()
    for family in MODELS:
        with tempfile.TemporaryDirectory(prefix="penstock-adapters-") as name:
            check_one(penstock, Path(name), family)


if __name__ == "__main__":
    check_families(*sys.argv[1:], check)
