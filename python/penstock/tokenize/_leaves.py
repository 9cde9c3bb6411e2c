"""Strings inside a value of JSON, and the value with another one in a string's place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_STRING = re.compile(r'"(?:[^"\\]+|\\.)*"')


def with_each(value: Any, other: str, wanted: Callable[[str], bool]) -> Iterator[Any]:
    """The value with `other` in place of one string that is `wanted`; keys are strings, too.

    By its text: it may be nested as deep as JSON is read.
    """
    text = json.dumps(value, ensure_ascii=False)
    for match in _STRING.finditer(text):
        if wanted(json.loads(match.group())):
            yield json.loads(text[: match.start()] + json.dumps(other) + text[match.end() :])
