#!/usr/bin/env python3
"""`penstock train` from a Hugging Face folder to one: what transformers saved, and loads.

Training with a learning rate of 0 gives the folder's tensors, bit for bit; training gives the same
bits in every pipeline, and in every stage of ZeRO, and transformers loads them.
Usage: hugging_face_train_test.py PENSTOCK, run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers is not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import torch
from safetensors.torch import load_file

SIZES = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    **SIZES,
)
GPT2 = transformers.GPT2Config(n_positions=32, n_embd=32, n_layer=4, n_head=4, **SIZES)
CONFIG = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"params": {"lr": 1e-3}},
    "run": {"steps": 3, "eval_batches": 1},
}


class Runs:
    def __init__(self, penstock: str, folder: Path) -> None:
        self.penstock, self.folder, self.number = penstock, folder, 0
        self.text = folder / "text"
        self.text.write_text("".join(f"{i} times {i} is {i * i}\n" for i in range(4000)))

    def make(self, name: str, config, **saving) -> Path:
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.to(saving.pop("dtype", torch.float32)).save_pretrained(self.folder / name, **saving)
        (self.folder / name / "tokenizer.json").write_text('{"of": "the folder"}')
        return self.folder / name

    def train(self, model: Path, pipe=1, data=1, **changes) -> Path:
        self.number += 1
        saved = self.folder / f"saved-{self.number}"
        config = CONFIG | {"mesh": {"pipe": pipe, "data": data}} | changes
        config["model"] = {"type": "hugging_face", "path": str(model), "sequence_length": 32}
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        command = (self.penstock, "train", path, "--data", self.text, "--save", saved)
        run = ("--nproc", str(pipe * data), "--run", self.folder / f"run-{self.number}")
        done = subprocess.run([*command, *run], text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return saved


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    whole = {}
    for file in folder.glob("*.safetensors"):
        whole |= load_file(file)
    return whole


def expect_same(one: Path, other: Path) -> None:
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys(), set(a) ^ set(b)
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype, name
        assert torch.equal(tensor, b[name]), name


def main(penstock: str) -> None:
    torch.manual_seed(7)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as name:
        runs = Runs(penstock, Path(name))
        still = {"optimizer": {"params": {"lr": 0.0}}}
        gpt2 = runs.make("gpt2", GPT2)
        sharded = runs.make("llama", LLAMA, dtype=torch.bfloat16, max_shard_size="40kB")
        assert len(list(sharded.glob("*.safetensors"))) > 1
        expect_same(runs.train(gpt2, pipe=2, **still), gpt2)
        zero = {"zero_optimization": {"stage": 3}}
        saved = runs.train(sharded, pipe=2, data=2, **still, **zero)
        expect_same(saved, sharded)
        for file in ("config.json", "generation_config.json", "tokenizer.json"):
            assert (saved / file).read_text() == (sharded / file).read_text(), file

        one = runs.train(gpt2)
        expect_same(runs.train(gpt2, pipe=2, schedule="zbv"), one)
        assert not torch.equal(tensors(one)["transformer.ln_f.bias"], torch.zeros(32))
        whole = runs.train(gpt2, pipe=2, data=2)
        expect_same(runs.train(gpt2, pipe=2, data=2, **zero), whole)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(whole)
        for name, tensor in tensors(whole).items():
            assert torch.equal(loaded.state_dict()[name], tensor), name


if __name__ == "__main__":
    main(*sys.argv[1:])
