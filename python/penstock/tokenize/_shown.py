"""Samples as text, with the tokens that count in the loss marked.

In colour on a terminal, between brackets elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from penstock._printable import printable
from penstock.tokenize._samples import runs

_BRACKETS = ("[[", "]]")
_COLOUR = ("\033[30;42m", "\033[0m")


class Shown:
    """Keeps the first `wanted` of what is written."""

    def __init__(self, wanted: int, decode: Callable[[list[int]], str], filler: int | None) -> None:
        self._wanted = wanted
        self._decode = decode
        self._filler = filler
        self._kept: list[tuple[list[int], list[bool]]] = []

    def add(self, tokens: list[int], counts: list[bool] | None) -> None:
        """A document, or a sample of several."""
        if tokens and len(self._kept) < self._wanted:
            self._kept.append((tokens, [True] * len(tokens) if counts is None else counts))

    def text(self) -> str:
        """All of them, a title before each."""
        marks = _COLOUR if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else _BRACKETS
        parts = []
        for number, (tokens, counts) in enumerate(self._kept):
            title = f"--- {number}: {len(tokens)} tokens, {sum(counts)} count"
            parts.append(f"{title}\n{self._marked(tokens, counts, marks)}\n")
        return "".join(parts)

    def _marked(self, tokens: list[int], counts: list[bool], marks: tuple[str, str]) -> str:
        size = len(tokens)
        while size > 1 and tokens[size - 1] == tokens[size - 2] == self._filler:
            size -= 1
        said = []
        for begin, end, counted in runs(counts[:size]):
            text = printable(self._decode(tokens[begin:end]))
            said.append(f"{marks[0]}{text}{marks[1]}" if counted else text)
        if size < len(tokens):
            said.append(f" (and {len(tokens) - size} times more)")
        return "".join(said)
