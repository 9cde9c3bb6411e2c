"""The text of tokens that come one after the other, told as soon as its characters are whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"  # What decoders write for bytes that are no character yet.
# A character has four bytes at most; some decoders write one of these for each.
_HELD_MAX = 3
# Tokens that are decoded anew with each that comes, at most, but where no part of them will do;
# and those of them that stay.
_WINDOW, _CONTEXTS = 64, range(8, 16)


class AnswerText:
    """Law: what add() and finish() return, together, is the text of all tokens.

    Decoders that write each byte of a run apart as soon as one of them is in no character break it,
    of what was told already.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._told = ""  # What is told of the text of these tokens.
        self._parts: list[str] = []

    def add(self, tokens: Sequence[int]) -> str:
        """What is new of the text; what may become another character is held back."""
        self._tokens += tokens
        text = self._decode(self._tokens)
        incomplete = len(text) - len(text.rstrip(_INCOMPLETE))
        if incomplete and not text.startswith(self._told):
            return ""  # Characters told already are such bytes until the next one is whole.
        new = self._told_to(text, len(text) - min(incomplete, _HELD_MAX))
        if not incomplete and len(self._tokens) > _WINDOW:
            self._shorten(text)
        return new

    def finish(self) -> str:
        """What was held back: nothing follows it."""
        text = self._decode(self._tokens)
        return self._told_to(text, len(text))

    def whole(self) -> str:
        """All that was told."""
        return "".join(self._parts)

    def _told_to(self, text: str, end: int) -> str:
        new = text[len(self._told) : end]
        self._told = text[: max(len(self._told), end)]
        self._parts.append(new)
        return new

    def _shorten(self, text: str) -> None:
        """Forgets tokens that change nothing, up to where a character begins."""
        for size in _CONTEXTS:
            last = self._decode(self._tokens[-size:])
            if last.strip() and text.endswith(last):
                self._tokens = self._tokens[-size:]
                self._told = last
                return
