#!/usr/bin/env python3
"""`penstock generate` writes what transformers' generate() does, without drawing.

For each family with random weights, through one rank, a pipeline of two, and two that share layers;
tokens that end a text end both.  Usage: generate_test.py PENSTOCK, run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers is not installed.
Takes over 10 s: it imports transformers, and starts penstock nine times for each family.
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
from hugging_face_test import CASES, VOCABULARY, random_model

PROMPT, TOKENS = 11, 24  # With windows of 5 and 8, tokens leave every one.


def ours(penstock: str, folder: Path, prompt: list[int], *words: str) -> list[int]:
    given = ("--tokens", ",".join(map(str, prompt)), "--max-tokens", str(TOKENS), "--json")
    command = (penstock, "generate", str(folder), *given, *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["prompt_tokens"] == prompt and "text" not in told, told
    return told["tokens"]


def theirs(model, prompt: list[int]) -> list[int]:
    inputs = torch.tensor([prompt])
    mask = torch.ones_like(inputs)
    written = model.generate(inputs, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
    return written[0, len(prompt) :].tolist()


def check(penstock: str, model, folder: Path) -> None:
    prompt = torch.randint(1, VOCABULARY, (PROMPT,)).tolist()
    expected = theirs(model, prompt)
    assert ours(penstock, folder, prompt) == expected
    assert ours(penstock, folder, prompt, "--pipe", "2") == expected
    assert ours(penstock, folder, prompt, "--set", "mesh.tensor=2") == expected
    ends = folder / "generation_config.json"
    ends.write_text(json.dumps({"eos_token_id": [VOCABULARY + 5, expected[3]]}))
    shorter = expected[: expected.index(expected[3]) + 1]
    assert ours(penstock, folder, prompt) == shorter
    drawing = ("--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--seed")
    drawn = [ours(penstock, folder, prompt, *drawing, seed) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2], drawn
    assert ours(penstock, folder, prompt, "--temperature", "2", "--top-k", "1") == shorter
    assert ours(penstock, folder, prompt, "--temperature", "2", "--top-p", "1e-6") == shorter


def main(penstock: str, *names: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(20261124)
    transformers.logging.set_verbosity_error()
    for name, (config, arguments) in CASES.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-parity-") as where:
            model = random_model(config(**{**arguments, "eos_token_id": None}))
            model.save_pretrained(where)
            check(penstock, model, Path(where))
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
