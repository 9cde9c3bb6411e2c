#!/usr/bin/env python3
"""Every two commands that write, in one folder at once: never a mix, never two that succeed.

First one of the two is stopped while it has the folder, and the other one has to be refused.  Then
both begin at one time, and what is in the folder has to be what commands make alone.  Prints
"N of N".  Needs the standard library; tokenizes where PENSTOCK_TORCH_PYTHON has the packages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import support
from support import PENSTOCK, TORCH_PYTHON

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
# What changes from one time to the next, or comes with a run besides what is compared.
OF_A_RUN = {"events.jsonl", "loss.svg", "timeline.csv", "timeline.json", "config.resolved.json"}
OF_METRICS = ("tokens_per_second", "step_time_seconds")


@dataclass(frozen=True)
class Command:
    """A command that writes to a folder: its words, and a file that is there once it has."""

    name: str
    words: list[str]
    needs_folder: bool = True


def digest(path: Path, folder: Path) -> str:
    """Of the content, which may name the folder, and the directory of its run."""
    if path.name != "metrics.jsonl":
        content = path.read_bytes().replace(folder.name.encode(), b"F")
        return hashlib.sha256(re.sub(rb"runs/\d{5}", b"R", content)).hexdigest()
    lines = map(json.loads, path.read_text().splitlines())
    kept = [{k: v for k, v in line.items() if k not in OF_METRICS} for line in lines]
    return json.dumps(kept)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): digest(path, folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OF_A_RUN
    }


class Pairs(support.ProcessTest):
    """One pair of commands, so often."""

    times = 20
    only = ""

    def runTest(self) -> None:  # noqa: N802
        self.prepare()
        commands = self.commands()
        self.alone = {each.name: self.result_of(each) for each in commands}
        good = 0
        pairs = [
            pair
            for pair in itertools.combinations_with_replacement(commands, 2)
            if not self.only or {each.name for each in pair} == set(self.only.split(","))
        ]
        for first, second in pairs:
            began = time.monotonic()
            wrong = [w for w in self.pair(first, second) if w]
            good += not wrong
            seconds = f"{time.monotonic() - began:.0f} s"
            what = f"{first.name} and {second.name}: {len(wrong)} wrong of {3 * self.times}"
            print(f"{what}, {seconds}", *wrong[:3], sep="\n  ", flush=True)
        print(f"{good} of {len(pairs)} pairs of commands share no folder, {self.times} times each")
        self.assertEqual(good, len(pairs))

    def prepare(self) -> None:
        one = {"pipe": 1, "data": 1}
        run = {"steps": 4, "eval_batches": 1, "sample_bytes": 0}
        self.short = self.config(mesh=one, run=run)
        self.assert_code(self.train(self.short, "--run", "source", "--checkpoint-every", "2"), 0)
        llama = self.folder / "llama"
        llama.mkdir()
        (llama / "config.json").write_text(json.dumps(LLAMA))
        values = json.loads(self.short.read_text())
        values["model"] = {
            "type": "hugging_face", "path": "llama", "weights": "random", "sequence_length": 16,
            "adapter": {"rank": 2, "alpha": 4, "targets": "q_proj"},
        }  # fmt: skip
        self.adapted = self.folder / "adapted.json"
        self.adapted.write_text(json.dumps(values))
        words = {"the": 0, "river": 1, "mill": 2, "?": 3}
        tokenizer = {
            "version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "?"},
        }  # fmt: skip
        (self.folder / "tok").mkdir()
        (self.folder / "tok/tokenizer.json").write_text(json.dumps(tokenizer))

    def commands(self) -> list[Command]:
        train = [str(PENSTOCK), "train"]
        kept = [str(PENSTOCK), "checkpoint"]
        all_ = [
            Command("train", [*train, str(self.short), "--run", "F"]),
            Command("train --save", [*train, str(self.short), "--save", "F", "--run", "R"]),
            Command("adapters", [*train, str(self.adapted), "--save", "F", "--run", "R"]),
            Command("merge", [*train, str(self.adapted), "--save", "F", "--run", "R",
                              "--set", "model.adapter.merge=true"]),
            Command("export", [*kept, "export", "source", "F"], needs_folder=False),
            Command("prune", [*kept, "prune", "F", "--keep-last", "1"]),
        ]  # fmt: skip
        if self.has_tokenizer():
            words = ["-m", "penstock.tokenize", "--tokenizer", "tok", "--end-of-text", ""]
            all_.append(
                Command("tokenize", [TORCH_PYTHON, *words, str(self.text), "-o", "F/c.bin"])
            )
        return all_

    def has_tokenizer(self) -> bool:
        words = [TORCH_PYTHON, "-c", "import penstock.tokenize, tokenizers"]
        return bool(TORCH_PYTHON) and subprocess.run(words, check=False).returncode == 0

    # --- A folder, and what is in it --------------------------------------------------------------

    def fresh(self, *commands: Command) -> Path:
        self.number = getattr(self, "number", 0) + 1
        folder = self.folder / f"folder-{self.number:05}"
        if any(each.name == "prune" for each in commands):
            shutil.copytree(self.folder / "source/checkpoints", folder / "checkpoints")
        elif all(each.needs_folder for each in commands):
            folder.mkdir()
        return folder

    def begin(self, command: Command, folder: Path) -> support.Started:
        self.begun = getattr(self, "begun", 0) + 1
        names = {
            "F": folder.name, "F/c.bin": f"{folder.name}/c.bin", "R": f"runs/{self.begun:05}",
        }  # fmt: skip
        words = [names.get(word, word) for word in command.words]
        if command.name == "train" and (folder / "checkpoints").exists():
            words += ["--resume", "auto", "--checkpoint-every", "1", "--steps", "6"]
        return self.start(*words)

    def result_of(self, command: Command) -> dict[str, str]:
        folder = self.fresh(command)
        self.assert_code(self.begin(command, folder).wait(), 0)
        return content(folder)

    def is_kept(self, folder: Path, first: Command, second: Command) -> bool:
        """Whether the first one keeps the second out: an owner writes its name into its lock."""
        places = [folder / ".c.bin.penstock-lock"]
        if not first.name == second.name == "tokenize":  # They share a folder, and not the corpus.
            places.append(folder / ".penstock-lock")
        places += [
            folder / "checkpoints/.penstock-lock",
            folder.with_name(f".{folder.name}.penstock-lock"),
        ]
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                if place.stat().st_size > 0:
                    return True
        return False

    # --- Two commands -----------------------------------------------------------------------------

    def pair(self, first: Command, second: Command) -> Iterator[str]:
        for _ in range(self.times):
            yield self.held(first, second)
            yield self.held(second, first)
            yield self.raced(first, second)

    def held(self, first: Command, second: Command) -> str:
        """What is wrong with a second one that comes while the first has the folder."""
        for _ in range(50):
            folder = self.fresh(first, second)
            owner = self.begin(first, folder)
            while owner.process.poll() is None and not self.is_kept(folder, first, second):
                pass
            owner.process.send_signal(signal.SIGSTOP)
            if not self.is_kept(folder, first, second):  # It was faster.
                owner.process.send_signal(signal.SIGCONT)
                if owner.wait().code != 0:  # Alone, too, it refuses what the other one needs.
                    return ""
                continue
            refused = self.begin(second, folder).wait()
            owner.process.send_signal(signal.SIGCONT)
            result = owner.wait()
            # What makes a folder writes beside it: another one that makes it first has it.
            has_lost = refused.code == 0 and result.code in (2, 3)
            if has_lost and first.needs_folder:
                return f"{second.name} takes the folder from {first.name}"
            if not has_lost and refused.code not in (2, 3):
                return f"{second.name} ends with {refused.code} beside {first.name}"
            if not has_lost and result.code != 0:
                return f"{first.name}: {result.code}: {result.err[-400:]}"
            return self.mix(folder, first, second)
        return f"{first.name} was never seen at work"

    def raced(self, first: Command, second: Command) -> str:
        folder = self.fresh(first, second)
        runs = [self.begin(each, folder) for each in (first, second)]
        codes = [run.wait().code for run in runs]
        if not set(codes) <= {0, 2, 3}:
            return f"codes {codes}"
        # One after the other is no mix.
        return self.mix(folder, first, second) if codes.count(0) == 1 else ""

    def mix(self, folder: Path, first: Command, second: Command) -> str:
        """What the folder has that no command alone makes."""
        if any(each.name == "prune" for each in (first, second)):
            verified = self.run_words(PENSTOCK, "checkpoint", "verify", folder / "checkpoints")
            return "" if verified.code == 0 else verified.text
        found = content(folder)
        wanted = [self.alone[first.name], self.alone[second.name]]
        if found in wanted:
            return ""
        return f"{first.name} and {second.name} leave {sorted(found)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="", help="one pair: NAME,NAME")
    given = parser.parse_args()
    Pairs.times, Pairs.only = given.times, given.only
    result = unittest.TextTestRunner().run(Pairs())
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(support.BUILD / "python"))
    sys.exit(main())
