"""What the assistant writes by a template's own marks, {% generation %}.

Marks say nothing of messages.  Whose text stands between two of them is found by a mark in place of
one that the message has.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import shown
from penstock.tokenize._chats import Chat
from penstock.tokenize._leaves import with_each
from penstock.tokenize._written import MARK, Span, Written

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class GenerationMarks:
    """The marks of a tokenizer's templates."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def are_for(self, chat: Chat) -> bool:
        """Whether the template has marks that it takes for this chat."""
        return _GENERATION.search(self._template(chat)) is not None

    def written(self, chat: Chat, own: list[int]) -> list[Written]:
        """What stands between marks, and counts; `own`: the assistant's messages.

        Of a message without marks it is nothing, and not whole.
        Raises ConfigError where some do not count, and it cannot be told whose a text is.
        """
        text, spans = self._rendered(chat)
        said = _texts(text, spans)
        owners: list[set[int]] = [set() for _ in spans]
        counted = [number for number in own if number not in chat.left_out]
        parts = []
        for number in own:
            places, is_whole = self._places(chat, number, said)
            for place in places:
                owners[place].add(number)
            if number in counted:
                own_text = "".join(said[place] for place in sorted(places))
                is_whole = is_whole and _content(chat, number) in own_text
                parts.append(Written(number, Span(0, 0), has_end=True, is_whole=is_whole))
        for place, span in enumerate(spans):
            those = owners[place] or _neighbours(owners, place)
            if own and those.isdisjoint(counted):
                continue
            if not those.issubset(counted) or (MARK in text and counted != own):
                raise ConfigError(
                    f"{chat.where}: {shown(said[place])} is the assistant's, by "
                    "the chat template's marks, but of which message cannot be told, and some do "
                    "not count"
                )
            parts.append(Written(max(those, default=0), span, has_end=True, is_whole=True))
        return parts

    def _places(self, chat: Chat, number: int, said: list[str]) -> tuple[set[int], bool]:
        """Finds which of the marks' texts are of a message, and whether that is all it says."""
        places, is_whole = set(), True
        for says, marked in _variants(chat, number):
            try:
                text, spans = self._rendered(marked)
            except Exception:  # Templates raise what they like.
                continue
            other = _texts(text, spans)
            hits = [place for place, part in enumerate(other) if MARK in part]
            if len(other) == len(said):
                places |= {n for n, part in enumerate(other) if part != said[n]}
            elif hits:
                places |= {*range(hits[0], len(said) - (len(other) - 1 - hits[-1]))}
            if says and not hits and MARK in text:
                is_whole = False
        return places, is_whole

    def _rendered(self, chat: Chat) -> tuple[str, list[Span]]:
        rendering = importlib.import_module("transformers.utils.chat_template_utils")
        texts, spans = rendering.render_jinja_template(
            conversations=[chat.messages],
            tools=chat.tools,
            chat_template=self._template(chat),
            return_assistant_tokens_mask=True,
            **self._tokenizer.special_tokens_map,
        )
        return texts[0], [Span(*span) for span in spans[0]]

    def _template(self, chat: Chat) -> str:
        return str(self._tokenizer.get_chat_template(None, chat.tools))


def _texts(text: str, spans: list[Span]) -> list[str]:
    return [text[span.begin : span.end] for span in spans]


def _neighbours(owners: list[set[int]], place: int) -> set[int]:
    """The messages of the texts before and behind one."""
    before = next(filter(None, reversed(owners[:place])), set())
    return before | next(filter(None, owners[place + 1 :]), set())


def _content(chat: Chat, number: int) -> str:
    content = chat.messages[number]["content"]
    return content.strip() if isinstance(content, str) else ""


def _variants(chat: Chat, number: int) -> Iterator[tuple[bool, Chat]]:
    """The chat with a mark in place of what message `number` says, one at a time; whether it says
    that.
    """
    message = chat.messages[number]
    changed = [(bool(_content(chat, number)), {**message, "content": MARK})]
    if message.get("tool_calls"):
        calls = with_each(message["tool_calls"], MARK, lambda _: True)
        changed += [(True, {**message, "tool_calls": each}) for each in calls]
    for says, each in changed:
        messages = [*chat.messages[:number], each, *chat.messages[number + 1 :]]
        yield says, replace(chat, messages=messages)
