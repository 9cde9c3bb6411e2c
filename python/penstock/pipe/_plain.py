"""Values as what a file can hold that is read without running what is in it, and back.

    >>> from_plain(to_plain({"folder": Path("runs"), "rates": defaultdict(list)}, "client_state"))
    {'folder': PosixPath('runs'), 'rates': defaultdict(<class 'list'>, {})}

A value comes back as it was, of the type that it had, or is refused when it is saved.  Containers
are copied, and what two of them share is there twice.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from penstock.errors import ConfigError

__all__ = ["from_plain", "to_plain"]

_KIND = "__penstock__"  # A dict that has this key stands for a value of another type.
_ATOMS = (str, int, float, bool, complex, type(None))
_OF_TORCH = (torch.dtype, torch.device, torch.Size)
_KEYS = (str, int, float, bool, type(None))
_FACTORIES: dict[str, Any] = {
    each.__name__: each for each in (list, dict, set, tuple, str, int, float, bool)
}
_DEPTH_MAX = 100
_TOLD_MAX = 8


def to_plain(value: Any, where: str) -> Any:
    """The value as such.

    Raises ConfigError with the place and the type of what cannot be saved; `where` is its name.
    """
    refused: list[str] = []
    plain = _to_plain(value, where, refused, 0)
    if refused:
        more = [f"and {len(refused) - _TOLD_MAX} more"] if len(refused) > _TOLD_MAX else []
        raise ConfigError(
            f"{where} cannot be saved: {'; '.join(refused[:_TOLD_MAX] + more)}",
            (
                "a checkpoint holds numbers, texts, bytes, None, tensors, numpy's arrays and "
                "scalars, paths, namespaces, torch.Generator, and lists, tuples, sets and dicts "
                "of these",
            ),
        )
    return plain


def from_plain(plain: Any) -> Any:
    """What to_plain() was given.  Raises ValueError for what it does not give."""
    kind = type(plain)
    if kind in (list, tuple, set):
        return kind(from_plain(each) for each in plain)
    if kind not in (dict, OrderedDict):
        return plain
    if _KIND not in plain:
        return kind((key, from_plain(value)) for key, value in plain.items())
    name = plain[_KIND]
    if name not in _READERS:
        raise ValueError(f"a value of the unknown kind {name!r}")
    return _READERS[name](plain)


def _to_plain(value: Any, where: str, refused: list[str], depth: int) -> Any:
    def inner(each: Any, place: str) -> Any:
        return _to_plain(each, where + place, refused, depth + 1)

    def pairs(mapping: Any) -> list[tuple[Any, Any]]:
        return [(_key(key, where, refused), inner(each, f"[{key!r}]")) for key, each in mapping]

    if depth > _DEPTH_MAX:
        refused.append(f"{where} is nested too deep, or holds itself")
        return None
    kind = type(value)
    if kind in _ATOMS or kind in _OF_TORCH:
        return value
    if kind in (torch.Tensor, torch.nn.Parameter):
        return _tensor(value)
    if kind in (bytes, bytearray):
        return _stand_for(kind.__name__, value.decode("latin-1"))
    if kind in (list, tuple):
        return kind(inner(each, f"[{i}]") for i, each in enumerate(value))
    if kind in (set, frozenset):
        elements = [_key(each, where, refused) for each in value]
        return set(elements) if kind is set else _stand_for("frozenset", elements)
    if kind in (dict, OrderedDict):
        if _KIND in value:
            refused.append(f"{where} has the key {_KIND!r}, which is penstock's own")
            return None
        return kind(pairs(value.items()))
    if kind is Counter:
        return _stand_for("Counter", dict(pairs(value.items())))
    if kind is deque:
        return _stand_for("deque", [inner(each, f"[{i}]") for i, each in enumerate(value)]) | {
            "maxlen": value.maxlen
        }
    if kind is defaultdict:
        factory = getattr(value.default_factory, "__name__", None)
        if _FACTORIES.get(str(factory)) is not value.default_factory and factory is not None:
            refused.append(f"{where} is a defaultdict of {value.default_factory!r}")
        return _stand_for("defaultdict", dict(pairs(value.items()))) | {"factory": factory}
    if kind in (argparse.Namespace, types.SimpleNamespace):
        plain = {name: inner(each, f".{name}") for name, each in vars(value).items()}
        return _stand_for(kind.__name__, plain)
    if isinstance(value, Path):
        return _stand_for("Path", str(value))
    if kind is torch.Generator:
        return _stand_for("Generator", value.get_state()) | {"device": str(value.device)}
    return _of_numpy(value, where, refused)


def _stand_for(name: str, value: Any) -> dict[str, Any]:
    return {_KIND: name, "value": value}


def _key(key: Any, where: str, refused: list[str]) -> Any:
    """What is hashed stays as it is, or is refused."""
    if type(key) is tuple:
        return tuple(_key(each, where, refused) for each in key)
    if type(key) not in _KEYS:
        refused.append(f"{where} has the key or element {key!r}, {_type_of(key)}")
        return None
    return key


def _tensor(value: torch.Tensor) -> torch.Tensor:
    """Without its graph, and without what it is a part of."""
    value = value.detach()
    if value.layout is not torch.strided:
        return value
    whole = value.untyped_storage().nbytes()
    return value if whole == value.numel() * value.element_size() else value.clone()


def _of_numpy(value: Any, where: str, refused: list[str]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and (isinstance(value, numpy.generic) or type(value) is numpy.ndarray):
        if value.dtype.kind in "biufcmMSU":
            content = bytearray(value.tobytes())
            data = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0)
            plain = {"dtype": value.dtype.str, "shape": tuple(value.shape)}
            is_array = type(value) is numpy.ndarray
            return _stand_for("array" if is_array else "scalar", data) | plain
        refused.append(f"{where} is of numpy's type {value.dtype}")
        return None
    refused.append(f"{where} is {_type_of(value)}")
    return None


def _type_of(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")


def _array(plain: dict[str, Any]) -> Any:
    import numpy

    found = numpy.frombuffer(plain["value"].numpy().tobytes(), numpy.dtype(plain["dtype"]))
    return found.reshape(plain["shape"]).copy()


def _generator(plain: dict[str, Any]) -> torch.Generator:
    generator = torch.Generator(plain["device"])
    generator.set_state(plain["value"])
    return generator


def _named(plain: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = from_plain(plain["value"])
    return found


def _elements(plain: dict[str, Any]) -> Iterable[Any]:
    found: list[Any] = from_plain(plain["value"])
    return found


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bytes": lambda plain: plain["value"].encode("latin-1"),
    "bytearray": lambda plain: bytearray(plain["value"].encode("latin-1")),
    "frozenset": lambda plain: frozenset(_elements(plain)),
    "Counter": lambda plain: Counter(_named(plain)),
    "deque": lambda plain: deque(_elements(plain), plain["maxlen"]),
    "defaultdict": lambda plain: defaultdict(_FACTORIES.get(plain["factory"]), _named(plain)),
    "Namespace": lambda plain: argparse.Namespace(**_named(plain)),
    "SimpleNamespace": lambda plain: types.SimpleNamespace(**_named(plain)),
    "Path": lambda plain: Path(plain["value"]),
    "Generator": _generator,
    "array": _array,
    "scalar": lambda plain: _array(plain)[()],
}
