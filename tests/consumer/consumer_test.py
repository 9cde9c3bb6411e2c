#!/usr/bin/env python3
"""Installs a build of penstock, moves it, and builds and runs projects with it.

The project beside this file compares a pipeline with a plain loop.  examples/cpp/finetune_llama
saves, bit for bit, what `penstock train` does with the same numbers in a configuration;
examples/cpp/emulate_own_layers tells what `penstock emulate` does.
Usage: consumer_test.py CMAKE BUILD_FOLDER TORCH_DIR.

Takes over 10 s: three programs are compiled with torch's headers.  Everything happens in one folder
of the build, so that the build's ccache knows them where nothing has changed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

VOCABULARY = 100
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.1,
}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        line = " ".join(str(word) for word in command)
        sys.exit(f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def compiler_launcher(build: str) -> str:
    """What the build starts its compilers with, such as ccache."""
    name = "CMAKE_CXX_COMPILER_LAUNCHER"
    lines = Path(build, "CMakeCache.txt").read_text().splitlines()
    found = [line for line in lines if line.startswith(f"{name}:")]
    return f"-D{found[0]}" if found else f"-U{name}"


def build_project(
    cmake: str, source: Path, build: Path, prefix: Path, torch: str, launcher: str
) -> None:
    run(
        *(cmake, "-S", source, "-B", build),
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG",  # Compiled once, run for a moment.
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTorch_DIR={torch}", launcher),
    )
    run(cmake, "--build", build)


def train(penstock: Path, folder: Path, model: dict, saved: Path, **changes) -> None:
    """As examples/cpp/finetune_llama does on 4 ranks."""
    config = {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 2},
        "seed": 1234,
        "model": {"type": "hugging_face", "sequence_length": 128, **model},
        "data": {"path": str(folder / "corpus.bin")},
        "mesh": {"pipe": 2, "data": 2},
        "run": {"steps": 20, "eval_batches": 1, **changes},
    }
    (folder / "train.json").write_text(json.dumps(config))
    words = ("--save", saved, "--run", folder / f"run of {saved.name}")
    run(penstock, "train", folder / "train.json", *words)


def check_finetuning(program: Path, penstock: Path, folder: Path) -> None:
    draw = random.Random(7)
    tokens = [(7 * i + draw.randrange(3)) % VOCABULARY for i in range(40 * 128 + 1)]
    (folder / "corpus.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    note = {"penstock_corpus": 1, "token_bytes": 2, "tokens": len(tokens), "masked": False}
    note |= {"vocabulary": VOCABULARY, "end_of_text": None}
    note |= {"tokenizer": "none", "tokenizer_hash": "0"}
    (folder / "corpus.bin.json").write_text(json.dumps(note))
    (folder / "bare").mkdir()
    (folder / "bare/config.json").write_text(json.dumps(LLAMA))
    model, theirs, ours = (folder / name for name in ("model", "by the program", "by the example"))
    train(penstock, folder, {"path": str(folder / "bare"), "weights": "random"}, model, steps=1)
    train(penstock, folder, {"path": str(model)}, theirs)
    words = (program, model, folder / "corpus.bin", ours)
    told = run(penstock, "launch", "--nproc", "4", "--", *words, cwd=folder)
    losses = [float(line.split()[-1]) for line in told.splitlines() if " loss " in line]
    assert len(losses) == 20 and losses[-1] < losses[0], told
    files, others = ({path.name: path.read_bytes() for path in each.iterdir()}
                     for each in (ours, theirs))  # fmt: skip
    # A program says itself what it has trained: it gets the card of the folder.
    assert files.pop("README.md") == (model / "README.md").read_bytes()
    assert others.pop("README.md") != (model / "README.md").read_bytes()
    assert files == others, sorted(files)
    assert sum(name.endswith(".safetensors") for name in files) == 2, sorted(files)


def check_emulating(program: Path, penstock: Path, folder: Path) -> None:
    config = {
        "train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 2},
        "mesh": {"pipe": 2, "data": 2},
        "model": {"type": "gpt", "layers": 2, "hidden": 1024, "heads": 16, "sequence_length": 512},
    }
    (folder / "gpt.json").write_text(json.dumps(config))
    expected = []
    for device in ("h100-sxm", "a100-80"):
        words = ("emulate", folder / "gpt.json", "--device", device, "--json")
        step = json.loads(run(penstock, *words))
        expected.append(f"{device}: {1e3 * step['step_s']:.1f} ms a step, "
                        f"{16 / step['step_s']:.0f} samples a second")  # fmt: skip
        for rank in step["ranks"]:
            expected.append("  {kernels} kernels, {messages} messages of {message_bytes} bytes, "
                            "{peak_bytes} bytes at the peak".format(**rank))  # fmt: skip
    told = run(program).splitlines()
    assert told == expected, f"{told}, and not {expected}"


def main(cmake: str, build: str, torch: str) -> None:
    source, launcher = Path(__file__).resolve().parent, compiler_launcher(build)
    folder = Path(build, "tests/consumer")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run(cmake, "--install", build, "--prefix", folder / "installed")
    prefix = (folder / "installed").rename(folder / "moved")
    version = run(prefix / "bin/penstock", "--version")
    print(version, end="")
    assert "torch" in version, version
    for path in prefix.rglob("*.cmake"):
        text = path.read_text()
        for place in (build, str(folder / "installed")):
            assert place not in text, f"{path} names {place}"
    os.environ["LD_LIBRARY_PATH"] = str(Path(torch).parents[2] / "lib")  # docs/install.md
    build_project(cmake, source, folder / "build", prefix, torch, launcher)
    run(folder / "build/consumer")
    example = source.parent.parent / "examples/cpp/finetune_llama"
    build_project(cmake, example, folder / "example", prefix, torch, launcher)
    check_finetuning(folder / "example/finetune_llama", prefix / "bin/penstock", folder)
    if not Path(torch).parents[1].joinpath("lib/libtorch_cuda.so").exists():
        example = source.parent.parent / "examples/cpp/emulate_own_layers"
        build_project(cmake, example, folder / "emulated", prefix, torch, launcher)
        check_emulating(folder / "emulated/emulate_own_layers", prefix / "bin/penstock", folder)
    shutil.rmtree(folder)
    print("installed, moved, built against; trained and emulated as penstock does")


if __name__ == "__main__":
    main(*sys.argv[1:])
