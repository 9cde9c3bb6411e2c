#!/usr/bin/env python3
"""Weights that `penstock train --save` wrote give the same logits in gpt.py's PyTorch model.

Usage: gpt_test.py PENSTOCK PARITY_DUMP, run by a Python that has torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

GPT = Path(__file__).with_name("gpt.py")
CONFIG = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "gradient_clipping": 1.0,
    "model": {"layers": 2, "hidden": 32, "heads": 4, "sequence_length": 32},
    "mesh": {"pipe": 2, "data": 2},
    "run": {"steps": 40, "sample_bytes": 0, "eval_batches": 2},
}


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        line = " ".join(str(word) for word in command)
        sys.exit(f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(penstock: str, dump: str) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as name:
        folder = Path(name)
        weights = folder / "weights"
        data = folder / "data"
        data.mkdir()
        for i in range(60):  # Enough that a few fall to validation.
            (data / f"{i}.txt").write_text(
                "".join(f"{i} times {k} is {i * k}\n" for k in range(99))
            )
        (folder / "config.json").write_text(json.dumps(CONFIG))
        run(
            *(penstock, "train", folder / "config.json", "--nproc", "4", "--data", data),
            *("--run", folder / "run", "--save", weights),
        )
        run(dump, "logits", weights, folder / "logits.safetensors")
        compare = ("compare", "--weights", weights, "--expected", folder / "logits.safetensors")
        print(run(sys.executable, GPT, *compare), end="")

        # The same split, samples and mean as penstock's own validation.
        evaluate = ("evaluate", "--weights", weights, "--data", data, "--shuffle-context")
        theirs = json.loads(run(sys.executable, GPT, *evaluate, "--samples", "64"))
        lines = (folder / "run/metrics.jsonl").read_text().splitlines()
        ours = [json.loads(line) for line in lines if "val_loss" in line][-1]["val_loss"]
        print(f"validation loss: penstock {ours:.8f}, gpt.py {theirs['val_loss']:.8f}")
        assert abs(theirs["val_loss"] - ours) <= 1e-5 * ours, (theirs, ours)
        assert theirs["last_byte_loss_shuffled"] != theirs["last_byte_loss"], theirs


if __name__ == "__main__":
    main(*sys.argv[1:])
