#!/usr/bin/env python3
"""What a run may choose beside its Hugging Face folder: random weights, documents apart, saves and
texts on the way.

Usage: hugging_face_choices_test.py PENSTOCK, run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers is not installed.
Takes over 10 s: it imports transformers, and starts many runs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import tokenizers
import torch
from folder_runs import TINY_LLAMA, FolderRuns, expect_same, quiet, tensors, write_tokens

END, SEQUENCE, BATCH, STEPS = 3, 16, 4, 4
SIZES = {"vocab_size": 120, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}
LLAMA = transformers.LlamaConfig(num_hidden_layers=3, **TINY_LLAMA, **SIZES)
OPTIMIZER = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
STILL = {"optimizer": {"params": {"lr": 0.0}}}
BOUND = 1e-5  # Of losses, in float.


class Runs(FolderRuns):
    def __init__(self, penstock: str, folder: Path) -> None:
        tokens = torch.randint(0, SIZES["vocab_size"], (8 * BATCH * SEQUENCE + 1,))
        tokens[torch.rand(tokens.shape) < 0.15] = END
        self.samples = tokens.unfold(0, SEQUENCE + 1, SEQUENCE)
        note = {"vocabulary": 120, "end_of_text": END, "tokenizer": "none", "tokenizer_hash": "0"}
        self.corpus = write_tokens(folder / "noted.bin", tokens, masked=False, **note)
        self.bare = write_tokens(folder / "bare.bin", tokens)
        config = {
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": 1,
            "data": self.data(self.corpus),
            "optimizer": {"type": "AdamW", "params": OPTIMIZER},
            "run": {"steps": STEPS, "eval_batches": 1},
        }
        super().__init__(penstock, folder, config, {"sequence_length": SEQUENCE})
        self.base = self.make("base", LLAMA)

    @staticmethod
    def data(corpus: Path, **more) -> dict:
        return {"path": str(corpus), "shuffle": False, "validation": str(corpus)} | more


def check_documents(runs: Runs) -> None:
    """Losses are those of each document alone; the token behind an end is nobody's target."""
    apart = {"data": runs.data(runs.corpus, attend_across_documents=False)}
    one = runs.train(runs.base, **apart)
    losses = runs.losses()
    model = transformers.AutoModelForCausalLM.from_pretrained(runs.base, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    for ours, batch in zip(losses, runs.samples.split(BATCH)[:STEPS], strict=True):
        total, count = 0.0, 0
        for sample in batch:
            ends = (sample[:-1] == END).nonzero().flatten() + 1
            begins = [0, *ends.tolist(), SEQUENCE + 1]
            for first, end in pairwise(begins):
                document = sample[first:end]
                if document.numel() < 2:
                    continue
                logits = model(document[None, :-1]).logits[0]
                total += torch.nn.functional.cross_entropy(logits, document[1:], reduction="sum")
                count += document.numel() - 1
        loss = total / count
        assert abs(loss.item() - ours) < BOUND, (loss.item(), ours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for schedule in ("1f1b", "zbv"):
        expect_same(runs.train(runs.base, pipe=2, schedule=schedule, **apart), one)
    expect_same(runs.train(runs.base, pipeline={"activation_checkpoint_interval": 1}, **apart), one)
    said = {"attend_across_documents": False, "format": "uint16"}
    of_bare = runs.data(runs.bare, **said, document_end=END)
    expect_same(runs.train(runs.base, data=of_bare), one)
    across = runs.train(runs.base)
    assert not torch.equal(*(each["model.norm.weight"] for each in map(tensors, (across, one))))

    told = runs.train(runs.base, data=runs.data(runs.bare, **said), fails=True)
    assert "no one token is known that ends a document" in told, told
    assert "give the token with data.document_end" in told, told
    told = runs.train(runs.base, data=of_bare | {"document_end": 500}, fails=True)
    assert "data.document_end = 500: the model's vocabulary has 0 to 119" in told, told
    text = runs.folder / "text"
    text.write_text("one two three\n" * 4000)
    of_text = {"path": str(text), "attend_across_documents": False, "document_end": END}
    told = runs.train(runs.base, data=of_text, fails=True)
    assert "is for token files" in told, told


def check_random_weights(runs: Runs) -> None:
    """They need no more than config.json, are the same in every layout, and of the seed."""
    bare = runs.folder / "of config.json alone"
    bare.mkdir()
    (bare / "config.json").write_text((runs.base / "config.json").read_text())
    random = {"weights": "random"}
    one = runs.train(bare, model=random, **STILL)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(one)
    weights = tensors(one)
    for name, tensor in weights.items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    table = weights["model.embed_tokens.weight"]
    assert abs(table.std().item() - SIZES["initializer_range"]) < 0.02, table.std()
    assert torch.equal(weights["model.norm.weight"], torch.ones(32))
    expect_same(runs.train(bare, pipe=2, schedule="zbv", model=random, **STILL), one)
    zero = {"zero_optimization": {"stage": 3}}
    expect_same(runs.train(bare, pipe=2, replicas=2, model=random, **zero, **STILL), one)
    other = tensors(runs.train(bare, model=random, seed=5, **STILL))
    assert not torch.equal(other["lm_head.weight"], weights["lm_head.weight"])
    runs.train(bare, model=random)
    losses = runs.losses()
    assert losses[-1] < losses[0], losses
    told = runs.train(bare, fails=True)
    assert "safetensors" in told, told


def check_saves_on_the_way(runs: Runs) -> None:
    """Each takes the place of the one before, and the last is what is saved without them."""
    one = runs.train(runs.base, pipe=2)
    often = {"steps": STEPS, "eval_batches": 1, "save_interval": 1}
    saved = runs.train(runs.base, pipe=2, run=often)
    expect_same(saved, one)
    index = json.loads((saved / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert files == {each.name for each in saved.glob("*.safetensors")}, files
    # A run that ends before its last step leaves the model of the last save.
    half = runs.train(runs.base, pipe=2, run={"steps": 2, "eval_batches": 1})
    stopped = {"steps": STEPS, "eval_batches": 1, "save_interval": 2}
    kept = runs.folder / "kept"
    words = ("--inject", "kill:rank=1,step=4")
    runs.train(runs.base, pipe=2, run=stopped, save=kept, words=words, fails=True)
    expect_same(kept, half)


def check_texts_on_the_way(runs: Runs) -> None:
    """They go on from the prompt, the same in every layout, each once, also behind a resume."""
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(120)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(runs.base / "tokenizer.json"))
    short = {"eval_batches": 1, "sample_tokens": 6, "sample_interval": 2}
    run = short | {"steps": STEPS, "sample_prompt": "w5 w9 w7"}

    def lines() -> list[dict]:
        return [*map(json.loads, (runs.run / "samples.jsonl").read_text().splitlines())]

    runs.train(runs.base, run=run)
    first = lines()
    assert [each["step"] for each in first] == [2, 4], first
    for each in first:
        assert each["prompt_tokens"] == [5, 9, 7] and each["prompt"] == "w5 w9 w7", each
        ends = each["tokens"].index(0) + 1 if 0 in each["tokens"] else 6
        assert len(each["tokens"]) == ends, each
        assert each["text"].split() == [f"w{token}" for token in each["tokens"]], each
    assert first[0]["tokens"] != first[1]["tokens"], first
    whole = (runs.run / "sample.txt").read_text()
    assert whole == "w5 w9 w7" + first[1]["text"], whole
    runs.train(runs.base, pipe=2, replicas=2, run=run, zero_optimization={"stage": 3})
    assert lines() == first, lines()
    runs.train(runs.base, run=run, words=("--checkpoint-every", "2"))
    again = ("--resume", "auto", "--checkpoint-every", "2", "--set", "run.steps=6")
    runs.train(runs.base, run=run, words=("--run", runs.run, *again))
    runs.run = runs.folder / f"run-{runs.number - 1}"
    assert lines()[:2] == first and [each["step"] for each in lines()] == [2, 4, 6], lines()

    os.environ["PENSTOCK_PYTHON"] = "/no/python"
    runs.train(runs.base, run=short | {"steps": 1})
    (bare,) = lines()
    halves = runs.samples[:, : SEQUENCE // 2].tolist()
    assert bare["prompt_tokens"] in halves and "text" not in bare, bare
    assert not (runs.run / "sample.txt").exists()
    told = runs.train(runs.base, run=run, fails=True)
    assert "/no/python is not there" in told and "leave run.sample_prompt empty" in told, told
    os.environ["PENSTOCK_PYTHON"] = sys.executable
    told = runs.train(runs.base, run=run | {"sample_prompt": " "}, fails=True)
    assert 'run.sample_prompt = " ": has no tokens' in told, told


def main(penstock: str) -> None:
    torch.manual_seed(7)
    quiet()
    package = Path(penstock).resolve().parents[1] / "python"
    os.environ |= {"PENSTOCK_PYTHON": sys.executable, "PYTHONPATH": str(package)}
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as name:
        runs = Runs(penstock, Path(name))
        check_documents(runs)
        check_random_weights(runs)
        check_saves_on_the_way(runs)
        check_texts_on_the_way(runs)


if __name__ == "__main__":
    main(*sys.argv[1:])
