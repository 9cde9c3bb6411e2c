"""Runs of `penstock train` on Hugging Face folders that transformers made, and what they save."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

TINY_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TINY_GPT2 = {"n_positions": 32, "n_embd": 32, "n_head": 4}


def quiet() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Of all its files."""
    whole = {}
    for file in folder.glob("*.safetensors"):
        whole |= load_file(file)
    return whole


def expect_same(one: Path, other: Path) -> None:
    """The same names, types and bits."""
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys(), set(a) ^ set(b)
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype, name
        assert torch.equal(tensor, b[name]), name


def write_tokens(path: Path, tokens: torch.Tensor, **note) -> Path:
    """As plain uint16 tokens, with a note where there is something to say."""
    path.write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    if note:
        said = {"penstock_corpus": 1, "token_bytes": 2, "tokens": tokens.numel()} | note
        Path(f"{path}.json").write_text(json.dumps(said))
    return path


class FolderRuns:
    """`config` is what every run has; `model` what its section "model" has beside the path."""

    def __init__(self, penstock: str, folder: Path, config: dict, model: dict) -> None:
        self.penstock, self.folder, self.number = penstock, folder, 0
        self.config, self.model = config, {"type": "hugging_face"} | model

    def make(self, name: str, config, dtype=torch.float32, **saving) -> Path:
        """A folder with random weights."""
        path = self.folder / name
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.to(dtype).save_pretrained(path, **saving)
        return path

    def train(
        self,
        path: Path,
        pipe=1,
        replicas=1,
        save=None,
        fails=False,
        words=(),
        model=None,
        **changes,
    ):
        """The folder that was saved, or, of a run that fails, its messages."""
        self.number += 1
        saved = save or self.folder / f"saved-{self.number}"
        self.run = self.folder / f"run-{self.number}"
        config = self.config | {"mesh": {"pipe": pipe, "data": replicas}} | changes
        config["model"] = self.model | {"path": str(path)} | (model or {})
        file = self.folder / "config.json"
        file.write_text(json.dumps(config))
        command = [self.penstock, "train", file, "--save", saved, "--run", self.run, *words]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else saved

    def losses(self) -> list[float]:
        """Of the last run."""
        lines = map(json.loads, (self.run / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "loss" in line]
