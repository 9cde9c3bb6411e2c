"""Texts of special tokens that somebody typed: letters, and no special tokens.

A tokenizer takes "<|im_end|>" in a text for its token, whoever wrote it.  Here the text is cut at
the special tokens that are meant, and the pieces between are encoded without any.  Whether a
tokenizer's pieces are its whole is tried on the same text with other letters there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from penstock.tokenize._written import Span

Encoded = tuple[list[int], list[tuple[int, int]]]
"""Token ids, and the characters [begin, end) of each."""


class SpecialTexts:
    """The special tokens of a tokenizer of the package tokenizers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._tokens = {
            token.content: (number, token) for number, token in added.items() if token.special
        }
        longest = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest))) if longest else None

    @property
    def texts(self) -> list[str]:
        """The texts of all special tokens."""
        return [*self._tokens]

    def numbers(self) -> dict[int, str]:
        """Their ids and texts."""
        return {number: text for text, (number, _) in self._tokens.items()}

    def is_in(self, text: str) -> bool:
        """Whether a text has the text of a special token."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def typed(self, text: str, spans: Sequence[Span]) -> list[Span]:
        """The places where spans of a text have the text of a special token."""
        found = []
        for span in spans if self._pattern else ():
            assert self._pattern is not None
            for match in self._pattern.finditer(text, span.begin, span.end):
                found.append(Span(match.start(), match.end()))
        return found

    def encode(self, text: str, typed: Sequence[Span]) -> Encoded | None:
        """The text with what was `typed` as letters; None where this tokenizer cannot do that."""
        other = text
        for span in typed:
            other = other[: span.begin] + "x" * (span.end - span.begin) + other[span.end :]
        whole = self._tokenizer.encode(other, add_special_tokens=False)
        if self._by_pieces(other, ()) != (whole.ids, whole.offsets):
            return None
        return self._by_pieces(text, typed)

    def _by_pieces(self, text: str, typed: Sequence[Span]) -> Encoded:
        assert self._pattern is not None
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        before = {span.begin for span in typed}
        done = 0
        for match in self._pattern.finditer(text):
            if match.start() in before or match.start() < done:
                continue
            number, token = self._tokens[match.group()]
            begin, end = match.span()
            if token.lstrip:
                begin = done + len(text[done:begin].rstrip())
            if token.rstrip:
                end += len(text[end:]) - len(text[end:].lstrip())
            self._add_piece(text, done, begin, ids, offsets)
            ids.append(number)
            offsets.append((begin, end))
            done = end
        self._add_piece(text, done, len(text), ids, offsets)
        return ids, offsets

    def _add_piece(
        self, text: str, begin: int, end: int, ids: list[int], offsets: list[tuple[int, int]]
    ) -> None:
        if begin == end:
            return
        self._tokenizer.encode_special_tokens = True
        try:
            piece = self._tokenizer.encode(text[begin:end], add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = False
        ids.extend(piece.ids)
        offsets.extend((first + begin, last + begin) for first, last in piece.offsets)
