#!/usr/bin/env python3
"""A real model: SmolLM2-135M-Instruct, against transformers and a plain PyTorch loop.

Logits; perplexity on 200 kB of the Python standard library; the tokens behind a prompt; by how
much 30 steps of fine-tuning on 2 pipeline stages x 2 replicas with ZeRO 2 lower the loss; that
transformers loads the result and writes with it; and low-rank adapters after 20 steps, against
PEFT's, or, where it is missing, against the same products by hand.  Prints every figure with its
bound.
Usage: smollm.py PENSTOCK PARITY_DUMP [FOLDER], run by a Python that has torch and pip.  FOLDER is
what tests/fetch_smollm.py made, or makes; without one, it is made and removed again.
Skipped, with exit code 77 and the reason, where transformers or the model cannot be had.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import torch
from adapters import adapted_by_hand, adapted_by_peft
from folder_runs import tensors
from safetensors.torch import load_file, save_file

FETCH = Path(__file__).resolve().parents[1] / "fetch_smollm.py"
TEXT_BYTES = 200_000
SEQUENCE, TUNED_SEQUENCE = 512, 128
STEPS, BATCH = 30, 8
GREEDY_TOKENS = 48
SAMPLES = 8 * BATCH  # To tune on, again and again.
OPTIMIZER = {"lr": 2e-5, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CLIPPING = 1.0
ADAPTER = {"rank": 8, "alpha": 16, "targets": "q_proj|v_proj"}
ADAPTER_STEPS = 20
BOUNDS = {"logits": 1e-4, "perplexity": 1e-4, "loss lowered by": 0.01, "adapters": 1e-4}


def standard_library() -> str:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return b"".join(file.read_bytes() for file in files)[:TEXT_BYTES].decode(errors="ignore")


def load(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def samples_of(path: Path, sequence: int) -> torch.Tensor:
    """[samples, sequence + 1]: inputs, and the token behind the last."""
    tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint16).long()
    return tokens.unfold(0, sequence + 1, sequence)


def loss_of(model, samples: torch.Tensor) -> torch.Tensor:
    logits = model(samples[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model, samples: torch.Tensor) -> float:
    sums = [loss_of(model, each).item() * len(each) for each in samples.split(4)]
    return math.fsum(sums) / len(samples)


class Check:
    def __init__(self, penstock: str, dump: str, model: Path, folder: Path) -> None:
        self.penstock, self.dump, self.model, self.folder = penstock, dump, model, folder
        self.failed: list[str] = []

    def run(self, *words: object) -> str:
        packages = str(Path(self.penstock).resolve().parents[1] / "python")
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": packages},
        )
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def expect(self, what: str, difference: float, detail: str) -> None:
        bound = BOUNDS[what]
        print(f"{what}: differs by {difference:.2e}, bound {bound:.0e} ({detail})", flush=True)
        if not difference <= bound:
            self.failed.append(what)

    def corpus(self) -> Path:
        (self.folder / "text").write_text(standard_library())
        corpus = self.folder / "corpus.bin"
        words = ("-m", "penstock.tokenize", "--tokenizer", self.model, self.folder / "text")
        self.run(sys.executable, *words, "-o", corpus)
        return corpus

    def evaluate(self, model: Path, corpus: Path, sequence: int) -> dict:
        words = ("--data", corpus, "--sequence-length", sequence, "--json")
        layout = ("--set", "mesh.pipe=2", "--set", "data.format=uint16")
        return json.loads(self.run(self.penstock, "evaluate", model, *words, *layout))

    def logits(self, theirs, corpus: Path) -> None:
        some = samples_of(corpus, 64)[:2]
        batch, out = self.folder / "batch", self.folder / "out"
        tokens = {"input": some[None, :, :-1], "target": some[None, :, 1:]}
        save_file({name: each.clone() for name, each in tokens.items()}, batch)
        self.run(self.dump, "folder", self.model, batch, out, "-", "1", "1")
        with torch.no_grad():
            expected = theirs(some[:, :-1]).logits
        difference = (load_file(out)["logits"] - expected).abs().max().item()
        out.unlink()
        self.expect("logits", difference, f"the largest is {expected.abs().max():.1f}")

    def perplexity(self, theirs, corpus: Path) -> None:
        ours = self.evaluate(self.model, corpus, SEQUENCE)
        expected = math.exp(mean_loss(theirs, samples_of(corpus, SEQUENCE)))
        difference = abs(ours["perplexity"] - expected) / expected
        detail = f"{ours['perplexity']:.6f} and {expected:.6f}, {ours['tokens']} tokens"
        self.expect("perplexity", difference, detail)

    def tuning(self, theirs, corpus: Path) -> Path:
        few = self.folder / "few.bin"
        few.write_bytes(corpus.read_bytes()[: 2 * (SAMPLES * TUNED_SEQUENCE + 1)])
        tuned = self.folder / "tuned"
        before = self.evaluate(self.model, few, TUNED_SEQUENCE)["loss"]
        self.train(few, tuned)
        ours = before - self.evaluate(tuned, few, TUNED_SEQUENCE)["loss"]
        samples = samples_of(few, TUNED_SEQUENCE)
        before = mean_loss(theirs, samples)
        plain_loop(theirs, samples)
        expected = before - mean_loss(theirs, samples)
        detail = f"from {before:.4f} by {ours:.5f} and {expected:.5f} in {STEPS} steps"
        self.expect("loss lowered by", abs(ours - expected) / expected, detail)
        return tuned

    def adapters(self) -> None:
        few, start, trained = (self.folder / name for name in ("few.bin", "start", "adapters"))
        still = {"type": "AdamW", "params": {"lr": 0.0}}
        self.train(few, start, adapter=ADAPTER, steps=1, optimizer=still)
        self.train(few, trained, adapter=ADAPTER, steps=ADAPTER_STEPS)
        model, ours = load(self.model), tensors(trained)
        try:
            model, theirs = adapted_by_peft(model, start)
        except ImportError as error:
            print(f"passed over: {error}; adapters are compared with the same by hand", flush=True)
            theirs = adapted_by_hand(model, start, ADAPTER["alpha"] / ADAPTER["rank"])
        plain_loop(model, samples_of(few, TUNED_SEQUENCE), ADAPTER_STEPS)
        assert ours.keys() == theirs.keys(), set(ours) ^ set(theirs)
        off = max((ours[name] - each.detach()).abs().max().item() for name, each in theirs.items())
        moved = max(each.abs().max().item() for name, each in ours.items() if "lora_B" in name)
        self.expect("adapters", off, f"the largest of a B is {moved:.1e}")

    def train(self, corpus: Path, saved: Path, adapter=None, steps=STEPS, optimizer=None) -> None:
        config = self.folder / "tune.json"
        data = {"path": str(corpus), "format": "uint16", "shuffle": False}
        config.write_text(
            json.dumps(
                {
                    "train_batch_size": BATCH,
                    "train_micro_batch_size_per_gpu": 1,
                    "model": {
                        "type": "hugging_face",
                        "path": str(self.model),
                        "sequence_length": TUNED_SEQUENCE,
                        "adapter": adapter or {},
                    },
                    "data": {**data, "validation": str(corpus)},
                    "optimizer": optimizer or {"type": "AdamW", "params": OPTIMIZER},
                    "gradient_clipping": CLIPPING,
                    "zero_optimization": {"stage": 2},
                    "mesh": {"pipe": 2, "data": 2},
                    "run": {"steps": steps, "eval_batches": 1},
                }
            )
        )
        self.run(self.penstock, "train", config, "--save", saved, "--run", self.folder / "run")

    def writes(self, tuned: Path) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
        prompt = tokenizer("def __init__(self", return_tensors="pt")
        written = load(tuned).generate(**prompt, max_new_tokens=24, do_sample=False)
        text = tokenizer.decode(written[0])
        print("transformers writes with the tuned model:", json.dumps(text))
        assert written.shape[1] > prompt.input_ids.shape[1], "it writes nothing"

    def greedy(self, theirs) -> None:
        tokens = transformers.AutoTokenizer.from_pretrained(self.model)("The capital of France is")
        prompt = tokens.input_ids
        limit = {"max_new_tokens": GREEDY_TOKENS, "do_sample": False}
        expected = theirs.generate(torch.tensor([prompt]), **limit)[0, len(prompt) :].tolist()
        words = ("--tokens", ",".join(map(str, prompt)), "--max-tokens", GREEDY_TOKENS, "--json")
        told = self.run(self.penstock, "generate", self.model, *words, "--pipe", 2)
        ours = json.loads(told)["tokens"]
        equal = sum(a == b for a, b in zip(ours, expected, strict=True))
        print(f"greedy: {equal} of {len(expected)} tokens are transformers'", flush=True)
        if ours != expected:
            self.failed.append("greedy")


def plain_loop(model, samples: torch.Tensor, steps: int = STEPS) -> None:
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, **OPTIMIZER)
    batches = samples.split(BATCH)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batches[step % len(batches)]).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIPPING)
        optimizer.step()


def main(penstock: str, dump: str, model: str | None = None) -> int:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="penstock-smollm-") as name:
        folder = Path(model) if model else Path(name) / "model"
        if (code := subprocess.run([sys.executable, FETCH, folder], check=False).returncode) != 0:
            return code
        check = Check(penstock, dump, folder, Path(name))
        corpus, theirs = check.corpus(), load(folder)
        check.logits(theirs, corpus)
        check.perplexity(theirs, corpus)
        check.greedy(theirs)
        check.writes(check.tuning(theirs, corpus))
        check.adapters()
        assert not check.failed, f"beyond the bound: {check.failed}"
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
