#!/usr/bin/env python3
"""`penstock train` from a Hugging Face folder to one: what transformers saved, and loads.

Training with a learning rate of 0 gives the folder's tensors, bit for bit; training gives the same
bits in every pipeline, and in every stage of ZeRO, and transformers loads them.
Usage: hugging_face_train_test.py PENSTOCK, run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers is not installed.
Takes over 10 s: it imports transformers, and trains in every layout.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import torch
from folder_runs import TINY_GPT2, TINY_LLAMA, FolderRuns, expect_same, quiet, tensors

SIZES = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = transformers.LlamaConfig(num_hidden_layers=4, **TINY_LLAMA, **SIZES)
GPT2 = transformers.GPT2Config(n_layer=4, **TINY_GPT2, **SIZES)
CONFIG = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"params": {"lr": 1e-3}},
    "run": {"steps": 3, "eval_batches": 1},
}


def runs_in(folder: Path, penstock: str) -> FolderRuns:
    text = folder / "text"
    text.write_text("".join(f"{i} times {i} is {i * i}\n" for i in range(4000)))
    config = CONFIG | {"data": {"path": str(text)}}
    return FolderRuns(penstock, folder, config, {"sequence_length": 32})


def main(penstock: str) -> None:
    torch.manual_seed(7)
    quiet()
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as name:
        runs = runs_in(Path(name), penstock)
        still = {"optimizer": {"params": {"lr": 0.0}}}
        gpt2 = runs.make("gpt2", GPT2)
        sharded = runs.make("llama", LLAMA, dtype=torch.bfloat16, max_shard_size="40kB")
        assert len(list(sharded.glob("*.safetensors"))) > 1
        (sharded / "tokenizer.json").write_text('{"of": "the folder"}')
        expect_same(runs.train(gpt2, pipe=2, **still), gpt2)
        zero = {"zero_optimization": {"stage": 3}}
        saved = runs.train(sharded, pipe=2, replicas=2, **still, **zero)
        expect_same(saved, sharded)
        for file in ("config.json", "generation_config.json", "tokenizer.json"):
            assert (saved / file).read_text() == (sharded / file).read_text(), file

        one = runs.train(gpt2)
        expect_same(runs.train(gpt2, pipe=2, schedule="zbv"), one)
        assert not torch.equal(tensors(one)["transformer.ln_f.bias"], torch.zeros(32))
        whole = runs.train(gpt2, pipe=2, replicas=2)
        expect_same(runs.train(gpt2, pipe=2, replicas=2, **zero), whole)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(whole)
        for name, tensor in tensors(whole).items():
            assert torch.equal(loaded.state_dict()[name], tensor), name


if __name__ == "__main__":
    main(*sys.argv[1:])
