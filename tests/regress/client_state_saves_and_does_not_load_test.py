"""What a client_state may hold comes back as it was; what it may not is refused as it is saved.

A Namespace, numpy values, a Path or a defaultdict were saved, and load_checkpoint() could not read
them, so that steps and scheduler were lost with them.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import MICROBATCHES, batches, engine_of, language_model

import penstock

WORLD_SIZE = 2


def values():
    """Of each kind that comes back."""
    nested = defaultdict(list, {"a": [1, Path("x/y")]})
    return {
        "args": argparse.Namespace(lr=np.float32(0.1), out=Path("runs"), inner=nested),
        "simple": types.SimpleNamespace(n=3),
        "scalars": [np.int64(3), np.bool_(True), np.str_("é"), np.datetime64("2026-01-02")],
        "array": np.arange(6, dtype=">i2").reshape(2, 3).T,
        "complex": np.array([1 + 2j]),
        "nothing": np.zeros((0, 3)),
        "generators": [random.Random(3).getstate(), np.random.default_rng(5).bit_generator.state],
        "legacy": np.random.RandomState(1).get_state(),
        "counts": Counter("abca"),
        "order": OrderedDict(b=1, a=2),
        "deque": deque([1, 2, 3], maxlen=3),
        "sets": [{1, "a"}, frozenset({2, (3, "b")})],
        "tuples": (1, (2.5, None), (), b"\x00\xff", b"", bytearray(b"x"), 3j, 10**40),
        "keys": {3: 1, None: 2, (1, "a"): 3, 1.5: 5, True: 6},
        "torch": [torch.float16, torch.device("cpu"), torch.Size([2, 3])],
        "nan": float("nan"),
    }


def same(one, other, where="client_state"):
    """Type and value, all the way down."""
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and np.array_equal(one, other), where
        return
    parts = vars(one) if isinstance(one, argparse.Namespace) else one
    others = vars(other) if isinstance(one, argparse.Namespace) else other
    if isinstance(parts, dict):
        assert repr(list(parts)) == repr(list(others)), where
        for key in parts:
            same(parts[key], others[key], f"{where}[{key!r}]")
    elif isinstance(parts, list | tuple):
        for i, pair in enumerate(zip(parts, others, strict=True)):
            same(*pair, f"{where}[{i}]")
    elif isinstance(parts, set | frozenset):  # In any order: it is that of hashes and insertions.
        assert sorted(map(repr, parts)) == sorted(map(repr, others)), where
    else:
        assert repr(one) == repr(other), where


def check_values_come_back(group):
    folder = Path(os.environ["STORE"]).with_name("checkpoints")
    engine = engine_of(language_model())
    engine.train_batch(batches(0, [5] * MICROBATCHES))
    generator = torch.Generator().manual_seed(7)
    part = torch.arange(10_000.0)[3:5]
    engine.save_checkpoint(folder, client_state={**values(), "g": generator, "part": part})
    path, state = engine.load_checkpoint(folder)
    sizes = [each.stat().st_size for each in Path(path).iterdir()]
    assert max(sizes) < 40_000  # Without what `part` is a part of.
    assert torch.equal(state.pop("part"), part)
    assert torch.equal(torch.rand(3, generator=state.pop("g")), torch.rand(3, generator=generator))
    same(values(), state)


def check_other_values_are_refused_by_key_and_type(group):
    folder = Path(os.environ["STORE"]).with_name("refused")
    engine = engine_of(language_model())
    cycle = []
    cycle.append(cycle)
    for words, value in [
        (
            r"client_state\['args'\].log is a logging.Logger",
            {"args": argparse.Namespace(log=logging.getLogger("x"))},
        ),
        (r"client_state\['f'\]\[1\] is a function", {"f": [0, same]}),
        (r"client_state\['d'\] is a defaultdict of <function", {"d": defaultdict(lambda: 0)}),
        (r"client_state\['k'\] has the key or element .*3.*numpy.int64", {"k": {np.int64(3): 1}}),
        (r"client_state\['o'\] is of numpy's type object", {"o": np.array([{}])}),
        ("nested too deep, or holds itself", {"c": cycle}),
        (r"'__penstock__', which is penstock's own", {"p": {"__penstock__": "Path"}}),
        (r"client_state\['a'\] is a .*; client_state\['b'\] is a", {"a": object(), "b": same}),
    ]:
        with pytest.raises((penstock.ConfigError, penstock.CommError), match=words):
            engine.save_checkpoint(folder, client_state=value)
        dist.barrier()
    assert not list(folder.glob("*"))
    engine.train_batch(batches(0, [5] * MICROBATCHES))  # It goes on.
    engine.save_checkpoint(folder, client_state={"epoch": 1})
    assert engine.load_checkpoint(folder)[1] == {"epoch": 1}


def test_a_file_cannot_ask_for_other_kinds():
    from penstock._engines.saving.saved_values import from_text

    with pytest.raises(ValueError, match="unknown kind 'system'"):
        from_text('{"a": [{"__penstock__": "system", "value": "true"}]}', [])


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
