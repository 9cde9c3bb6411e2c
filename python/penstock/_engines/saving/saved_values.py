"""Values as a text and tensors, which are read without running anything, and back.

    >>> text, tensors = to_text({"folder": Path("runs"), "by": defaultdict(list)}, "client_state")
    >>> from_text(text, tensors)
    {'folder': PosixPath('runs'), 'by': defaultdict(<class 'list'>, {})}

A value comes back as it was, of the type that it had, or is refused when it is saved.  Containers
are copied, and what two of them share is there twice.  The text is JSON
(docs/checkpoint_format.md).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from penstock.errors import ConfigError

__all__ = ["from_text", "to_text"]

_KIND = "__penstock__"  # An object that has this key stands for a value that JSON lacks.
_ATOMS = (str, int, float, bool, type(None))
_KEYS = (str, int, float, bool, type(None))
_FACTORIES: dict[str, Any] = {
    each.__name__: each for each in (list, dict, set, tuple, str, int, float, bool)
}
_DEPTH_MAX = 100
_TOLD_MAX = 8


def to_text(value: Any, where: str) -> tuple[str, list[torch.Tensor]]:
    """The value as a text, and the tensors in it, by number.

    Raises ConfigError with the place and the type of what cannot be saved; `where` is its name.
    """
    writing = _Writing()
    plain = writing.of(value, where, 0)
    if writing.refused:
        told, more = writing.refused[:_TOLD_MAX], len(writing.refused) - _TOLD_MAX
        raise ConfigError(
            f"{where} cannot be saved: {'; '.join([*told, *([f'and {more} more'] * (more > 0))])}",
            (
                "a checkpoint holds numbers, texts, bytes, None, dense tensors, numpy's arrays and "
                "scalars, paths, namespaces, torch.Generator, and lists, tuples, sets and dicts "
                "of these",
            ),
        )
    return json.dumps(plain), writing.tensors


def from_text(text: str, tensors: Sequence[torch.Tensor]) -> Any:
    """What to_text() was given.  Raises ValueError for what it does not give."""
    return _from_plain(json.loads(text), tensors)


def _from_plain(plain: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(plain, list):
        return [_from_plain(each, tensors) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if _KIND not in plain:
        return {key: _from_plain(value, tensors) for key, value in plain.items()}
    kind = plain[_KIND]
    if kind not in _READERS:
        raise ValueError(f"a value of the unknown kind {kind!r}")
    if kind == "Tensor":
        return tensors[plain["value"]]
    fields = {key: _from_plain(each, tensors) for key, each in plain.items() if key != _KIND}
    return _READERS[kind](fields)


class _Writing:
    """One to_text().  refused: what it cannot hold; tensors: so far."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.tensors: list[torch.Tensor] = []

    def of(self, value: Any, where: str, depth: int) -> Any:
        def inner(each: Any, place: str) -> Any:
            return self.of(each, where + place, depth + 1)

        def items(values: Iterable[Any]) -> list[Any]:
            return [inner(each, f"[{i}]") for i, each in enumerate(values)]

        def pairs(mapping: Any) -> list[Any]:
            return [
                [self.key(key, where), inner(each, f"[{key!r}]")] for key, each in mapping.items()
            ]

        if depth > _DEPTH_MAX:
            return self.refuse(f"{where} is nested too deep, or holds itself")
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind in (torch.Tensor, torch.nn.Parameter):
            return self.tensor(value, where)
        if kind is list:
            return items(value)
        if kind is dict and all(type(key) is str for key in value):
            if _KIND in value:
                return self.refuse(f"{where} has the key {_KIND!r}, which is penstock's own")
            return {key: inner(each, f"[{key!r}]") for key, each in value.items()}
        if kind in (dict, OrderedDict, Counter):
            return _stand_for(kind.__name__, pairs(value))
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", None)
            if factory is not None and _FACTORIES.get(factory) is not value.default_factory:
                self.refuse(f"{where} is a defaultdict of {value.default_factory!r}")
            return _stand_for("defaultdict", pairs(value), factory=factory)
        if kind in (tuple, torch.Size):
            return _stand_for(kind.__name__, items(value))
        if kind is deque:
            return _stand_for("deque", items(value), maxlen=value.maxlen)
        if kind in (set, frozenset):
            return _stand_for(kind.__name__, [self.key(each, where) for each in value])
        if kind in (argparse.Namespace, types.SimpleNamespace):
            named = {name: inner(each, f".{name}") for name, each in vars(value).items()}
            return _stand_for(kind.__name__, named)
        return self.leaf(value, where)

    def leaf(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind is complex:
            return _stand_for("complex", [value.real, value.imag])
        if kind in (bytes, bytearray):
            return _stand_for(kind.__name__, value.decode("latin-1"))
        if kind in (torch.dtype, torch.device):
            return _stand_for(kind.__name__, str(value).removeprefix("torch."))
        if isinstance(value, Path):
            return _stand_for("Path", str(value))
        if kind is torch.Generator:
            state = self.tensor(value.get_state(), where)
            return _stand_for("Generator", state, device=str(value.device))
        numpy = sys.modules.get("numpy")
        if numpy is None or not (isinstance(value, numpy.generic) or kind is numpy.ndarray):
            return self.refuse(f"{where} is {_type_of(value)}")
        if value.dtype.kind not in "biufcmMSU":
            return self.refuse(f"{where} is of numpy's type {value.dtype}")
        content = bytearray(value.tobytes())
        data = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0)
        fields = {"dtype": value.dtype.str, "shape": list(value.shape)}
        name = "array" if kind is numpy.ndarray else "scalar"
        return _stand_for(name, self.tensor(data, where), **fields)

    def tensor(self, value: torch.Tensor, where: str) -> Any:
        """Its number, without its graph; one of no elements as its type and shape."""
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            return self.refuse(f"{where} is a tensor of {value.layout}, or without values")
        if value.numel() == 0:
            dtype = str(value.dtype).removeprefix("torch.")
            return _stand_for("empty", list(value.shape), dtype=dtype)
        if value.is_complex():
            return _stand_for("complex tensor", self.tensor(torch.view_as_real(value), where))
        self.tensors.append(value.detach())
        return _stand_for("Tensor", len(self.tensors) - 1)

    def key(self, key: Any, where: str) -> Any:
        """What is hashed is of few kinds."""
        if type(key) is tuple:
            return _stand_for("tuple", [self.key(each, where) for each in key])
        if type(key) not in _KEYS:
            return self.refuse(f"{where} has the key or element {key!r}, {_type_of(key)}")
        return key

    def refuse(self, what: str) -> None:
        self.refused.append(what)


def _stand_for(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    return {_KIND: kind, "value": value, **more}


def _type_of(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch")
    return found


def _array(plain: dict[str, Any]) -> Any:
    import numpy

    content = plain["value"].numpy().tobytes()
    dtype = numpy.dtype(plain["dtype"])
    if dtype.hasobject or len(content) != dtype.itemsize * math.prod(plain["shape"]):
        raise ValueError(f"{len(content)} bytes are no array of {dtype} in {plain['shape']}")
    return numpy.frombuffer(content, dtype).reshape(plain["shape"]).copy()


def _generator(plain: dict[str, Any]) -> torch.Generator:
    generator = torch.Generator(plain["device"])
    generator.set_state(plain["value"])
    return generator


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Counter": lambda plain: Counter(dict(plain["value"])),
    "Generator": _generator,
    "Namespace": lambda plain: argparse.Namespace(**plain["value"]),
    "OrderedDict": lambda plain: OrderedDict(plain["value"]),
    "Path": lambda plain: Path(plain["value"]),
    "SimpleNamespace": lambda plain: types.SimpleNamespace(**plain["value"]),
    "Size": lambda plain: torch.Size(plain["value"]),
    "Tensor": lambda plain: plain["value"],
    "array": _array,
    "bytearray": lambda plain: bytearray(plain["value"].encode("latin-1")),
    "bytes": lambda plain: plain["value"].encode("latin-1"),
    "complex": lambda plain: complex(*plain["value"]),
    "complex tensor": lambda plain: torch.view_as_complex(plain["value"]),
    "defaultdict": lambda plain: defaultdict(
        _FACTORIES.get(plain["factory"]), dict(plain["value"])
    ),
    "deque": lambda plain: deque(plain["value"], plain["maxlen"]),
    "device": lambda plain: torch.device(plain["value"]),
    "dict": lambda plain: dict(plain["value"]),
    "dtype": lambda plain: _dtype(plain["value"]),
    "empty": lambda plain: torch.empty(plain["value"], dtype=_dtype(plain["dtype"])),
    "frozenset": lambda plain: frozenset(plain["value"]),
    "scalar": lambda plain: _array(plain)[()],
    "set": lambda plain: set(plain["value"]),
    "tuple": lambda plain: tuple(plain["value"]),
}
