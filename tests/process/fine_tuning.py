"""A tiny Llama of a folder, and corpora of numbers for it, as tests of fine-tuning take them."""

from __future__ import annotations

import array
import json
import random
from pathlib import Path

from model_folders import write_llama, write_random_weights
from support import PENSTOCK, ProcessTest, Result

SEQUENCE = 16
VOCABULARY = 256


def write_corpus(path: Path, tokens: list[int], **note: object) -> Path:
    """Two bytes a token, with a note as penstock.tokenize writes one."""
    path.write_bytes(array.array("H", tokens).tobytes())
    said = {
        "penstock_corpus": 1,
        "token_bytes": 2,
        "tokens": len(tokens),
        "vocabulary": VOCABULARY,
        "end_of_text": None,
        "tokenizer": "t",
        "tokenizer_hash": "0",
        "masked": False,
    }
    Path(f"{path}.json").write_text(json.dumps(said | note))
    return path


def documents(end: int, samples: int, seed: int = 3) -> list[int]:
    """Tokens of so many samples and the one behind them, in documents of 1 to 9 tokens."""
    draw, tokens = random.Random(seed), []
    while len(tokens) < samples * SEQUENCE + 1:
        tokens += [draw.randrange(8, VOCABULARY) for _ in range(draw.randint(1, 9))] + [end]
    return tokens[: samples * SEQUENCE + 1]


class FineTuning(ProcessTest):
    def setUp(self) -> None:
        super().setUp()
        self.model = write_llama(self.folder / "model")
        write_random_weights(self.model)

    def corpus(self, name: str, end: int = 0, samples: int = 16, **note: object) -> str:
        path = self.folder / f"{name}.bin"
        return str(write_corpus(path, documents(end, samples), end_of_text=end, **note))

    def tuning(self, name: str = "tune.json", **changes: object) -> Path:
        model = {"type": "hugging_face", "path": "model", "sequence_length": SEQUENCE}
        model["adapter"] = {"rank": 2, "alpha": 4, "targets": ["q_proj"]}
        path = self.folder / name
        values = {
            "train_batch_size": 4,
            "model": model,
            "optimizer": {"params": {"lr": 0.01}},
            "run": {"steps": 4, "eval_batches": 4},
        }
        for section, keys in changes.items():
            values[section] = values.get(section, {}) | keys
        path.write_text(json.dumps(values))
        return path

    def penstock(self, *words: object, code: int = 0) -> Result:
        result = self.run_words(PENSTOCK, *words)
        self.assert_code(result, code)
        return result
