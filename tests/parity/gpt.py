#!/usr/bin/env python3
"""penstock's byte-level GPT in PyTorch, for weights that `penstock train --save DIR` wrote.

Uses nothing of penstock: its own model, its own safetensors reader, its own data split.

  gpt.py compare --weights DIR --expected FILE
      Runs the tokens in FILE and compares with the logits there; exit code 1 beyond 1e-6.
  gpt.py evaluate --weights DIR [--data PATH] [--batches N] [--shuffle-context] [--samples N]
      The validation loss in nats per byte, as a JSON line.  With --shuffle-context also the loss of
      the last byte alone, as it is and with all earlier bytes but the newest shuffled: a model that
      only looks at the newest byte does not notice.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import struct
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(
            bytearray(data[8 + length + begin : 8 + length + end]), dtype=TYPES[entry["dtype"]]
        )
        tensors[name] = flat.view(entry["shape"])
    return tensors


def read_weights(folder: Path) -> dict[str, Tensor]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    weights = {}
    for shard in sorted(set(index["weight_map"].values())):
        weights |= read_safetensors(folder / shard)
    assert weights.keys() == index["weight_map"].keys(), "the index names other tensors"
    return weights


def read_config(folder: Path) -> dict:
    """The configuration: JSON, possibly with // comments on lines of their own or behind values."""
    text = (folder / "config.json").read_text()
    return json.loads(re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*', lambda m: m[1] or "", text))


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        query, key, value = (
            part.view(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(hidden, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, sequence, hidden))


class FeedForward(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden, 4 * hidden)
        self.c_proj = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden)
        self.attn = Attention(hidden, heads)
        self.ln_2 = nn.LayerNorm(hidden)
        self.mlp = FeedForward(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, sequence_length: int) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(256, hidden),
                "wpe": nn.Embedding(sequence_length, hidden),
                "h": nn.ModuleList(Block(hidden, heads) for _ in range(layers)),
            }
        )
        self.head = nn.ModuleDict(
            {"ln_f": nn.LayerNorm(hidden), "lm_head": nn.Linear(hidden, 256, bias=False)}
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.transformer["wte"](tokens)
        x = x + self.transformer["wpe"](torch.arange(tokens.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.head["lm_head"](self.head["ln_f"](x))


def load(folder: Path) -> tuple[Gpt, dict]:
    config = read_config(folder)
    model = config["model"]
    if model.get("type", "gpt") != "gpt":
        sys.exit(f"gpt.py: {folder} holds a model of type {model['type']}, not gpt")
    sizes = {name: model[name] for name in ("layers", "hidden", "heads", "sequence_length")}
    gpt = Gpt(**sizes).eval()
    gpt.load_state_dict(read_weights(folder), strict=True)
    return gpt, config


# The data, split and drawn as penstock/runtime/run/data.h says.

MASK = (1 << 64) - 1
VALIDATION_STREAM = 0x76616C6964617465
FOREIGN = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


def mix(x: int) -> int:
    """One step of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stable_hash(data: bytes) -> int:
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def files_of(root: Path) -> Iterator[Path]:
    library = (root / "os.py").exists() and (root / "abc.py").exists()
    folders = [root]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir():
                if not (library and entry.name in FOREIGN):
                    folders.append(entry)
            elif entry.is_file() and (not library or entry.suffix == ".py"):
                yield entry


def validation_text(path: Path) -> bytes:
    if not path.is_dir():
        text = path.read_bytes()
        return text[len(text) - len(text) // 20 :]
    names = sorted(file.relative_to(path).as_posix().encode() for file in files_of(path))
    chosen = (name for name in names if mix(stable_hash(name)) % 20 == 0)
    texts = ((path / name.decode()).read_bytes() for name in chosen)
    return b"".join(text for text in texts if b"\0" not in text[:4096])


def draw(text: bytes, batch: int, count: int, length: int) -> Tensor:
    """Samples of validation batch `batch`: [count, length + 1] bytes."""
    stream = mix(VALIDATION_STREAM ^ batch)
    starts = (mix(stream ^ mix(i)) % (len(text) - length) for i in range(count))
    return torch.tensor([list(text[start : start + length + 1]) for start in starts])


@torch.inference_mode()
def evaluate(arguments: argparse.Namespace) -> int:
    gpt, config = load(arguments.weights)
    length = config["model"]["sequence_length"]
    path = arguments.data or config.get("data", {}).get("path") or sysconfig.get_path("stdlib")
    text = validation_text(Path(path))
    count = config["train_batch_size"]
    batches = arguments.batches or config["run"]["eval_batches"]
    losses = []
    for batch in range(batches):
        sample = draw(text, batch, count, length)
        logits = gpt(sample[:, :-1])
        losses.append(
            functional.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten()).item()
        )
    result = {"val_loss": sum(losses) / len(losses), "batches": batches}
    if arguments.shuffle_context:
        result |= shuffle_context(gpt, text, length, arguments.samples)
    print(json.dumps(result))
    return 0


def shuffle_context(gpt: Gpt, text: bytes, length: int, samples: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(1)
    plain = shuffled = 0.0
    size = 64
    rounds = math.ceil(samples / size)
    for batch in range(rounds):
        sample = draw(text, batch, size, length)
        context, last = sample[:, :-1], sample[:, -1]
        other = context.clone()
        for row in other:
            row[:-1] = row[:-1][torch.randperm(length - 1, generator=generator)]
        plain += functional.cross_entropy(gpt(context)[:, -1], last).item()
        shuffled += functional.cross_entropy(gpt(other)[:, -1], last).item()
    return {
        "last_byte_loss": plain / rounds,
        "last_byte_loss_shuffled": shuffled / rounds,
        "rise": (shuffled - plain) / rounds,
        "samples": rounds * size,
    }


@torch.inference_mode()
def compare(arguments: argparse.Namespace) -> int:
    gpt, _ = load(arguments.weights)
    expected = read_safetensors(arguments.expected)
    difference = (gpt(expected["tokens"]) - expected["logits"]).abs().max().item()
    largest = expected["logits"].abs().max().item()
    print(f"logits differ by at most {difference:.3g}; the largest is {largest:.3g}")
    return 0 if difference <= 1e-6 and largest > 0.1 else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compare")
    one.add_argument("--weights", type=Path, required=True)
    one.add_argument("--expected", type=Path, required=True)
    one.set_defaults(run=compare)
    two = commands.add_parser("evaluate")
    two.add_argument("--weights", type=Path, required=True)
    two.add_argument("--data", type=Path)
    two.add_argument("--batches", type=int)
    two.add_argument("--samples", type=int, default=2048)
    two.add_argument("--shuffle-context", action="store_true")
    two.set_defaults(run=evaluate)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
