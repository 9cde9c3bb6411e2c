"""What a script puts into a configuration, as values of JSON.

Accelerate and Transformers fill dicts with numbers of numpy, tensors, enums, paths and infinity;
each is taken as the value that it stands for.  Knows no keys.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any

from penstock.errors import ConfigError

__all__ = ["as_json"]

_DEPTH_MAX = 64  # Same as penstock/json's.
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def as_json(config: Mapping[str, Any], name: str) -> str:
    """The text of a configuration.  Numbers that JSON lacks become "Infinity", "-Infinity", "NaN".

    name: of the configuration, for errors.
    Raises ConfigError for all values that stand for none of JSON, by their keys.
    """
    wrong: list[str] = []
    plain = _plain(config, "", wrong)
    if wrong:
        raise ConfigError(f"{name}: {wrong[0]}", tuple(f"{name}: {each}" for each in wrong[1:]))
    return json.dumps(plain, allow_nan=False)


def _plain(value: Any, path: str, wrong: list[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, path, wrong)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if path.count(".") + path.count("[") >= _DEPTH_MAX:
        wrong.append(f"{path}: nested deeper than {_DEPTH_MAX}")
        return None
    if isinstance(value, Mapping):
        return _object(value, path, wrong)
    if isinstance(value, list | tuple):
        return [_plain(each, f"{path}[{i}]", wrong) for i, each in enumerate(value)]
    if isinstance(value, Integral):
        return _integer(int(value))
    if isinstance(value, Real):
        return _number(float(value))
    return _of_other_libraries(value, path, wrong)


def _object(value: Mapping[Any, Any], path: str, wrong: list[str]) -> dict[str, Any]:
    found = {}
    for key, each in value.items():
        word = key.value if isinstance(key, Enum) else key
        if not isinstance(word, str):
            wrong.append(f"{path or 'the config'}: the key {key!r} is no text")
            continue
        found[str(word)] = _plain(each, f"{path}.{word}" if path else word, wrong)
    return found


def _integer(value: int) -> int | float | str:
    if abs(value) < 1 << 63:
        return value
    try:
        return float(value)
    except OverflowError:
        return "Infinity" if value > 0 else "-Infinity"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _of_other_libraries(value: Any, path: str, wrong: list[str]) -> Any:
    """A type, a torch.dtype or torch.device, an array or a tensor."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        name = str(value).removeprefix("torch.")
        return _TYPES.get(name, name)
    if (kind.__module__, kind.__name__) == ("torch", "device"):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), path, wrong)
    wrong.append(
        f"{path}: a {kind.__name__} stands for no value of JSON; give a number, text, a list or a "
        f"dict"
    )
    return None
