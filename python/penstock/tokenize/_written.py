"""What the assistant writes of a chat, as places in the chat's text."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "Penstock0Mark"
"""What stands in place of a text, to see where that is written."""


@dataclass(frozen=True)
class Span:
    """Characters [begin, end) of a text."""

    begin: int
    end: int


@dataclass(frozen=True)
class Written:
    """What the assistant writes in message `number`."""

    number: int
    span: Span
    has_end: bool  # The template writes a token that ends it.
    is_whole: bool  # The template leaves nothing of it out.
