"""A chat template: chats to text, and which of the text the assistant writes.

A template may say it with marks, {% generation %}, which are then followed.  Else it is found by
rendering.  A mark in place of a message's content tells where that is in
the whole text.  The generation prompt tells what stands before an answer, and the text that ends
with the message tells its end.  So a template that writes earlier turns in another way is
no matter.  What cannot be found so is refused.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import ConfigError
from penstock.tokenize._chats import Chat

MARK = "Penstock0Mark"
"""What stands in place of a text, to see where that is written."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


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
    is_whole: bool  # The template leaves nothing of the content out.


@dataclass(frozen=True)
class _Lead:
    """What stands between the message before an answer and the answer's content."""

    header: str  # What the assistant does not write: the generation prompt.
    rest: str  # What follows it, and the assistant writes.


class Template:
    """The template of a tokenizer of transformers.  `specials`: the texts of special tokens."""

    def __init__(self, tokenizer: Any, specials: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._specials = tuple(specials)
        self._leads: dict[str, list[_Lead]] = {}
        self._marked = _GENERATION.search(str(tokenizer.chat_template)) is not None

    def render(self, chat: Chat, *, prompts: bool = False) -> str:
        """Raises ConfigError where the template does."""
        try:
            text = self._tokenizer.apply_chat_template(
                chat.messages, tools=chat.tools, tokenize=False, add_generation_prompt=prompts
            )
        except Exception as error:  # Templates raise what they like.
            raise ConfigError(f"{chat.where}: the chat template refuses it: {error}") from None
        return str(text)

    def or_none(self, chat: Chat, *, prompts: bool = False) -> str | None:
        """The same, of a chat that the template may refuse."""
        try:
            return self.render(chat, prompts=prompts)
        except ConfigError:
            return None

    def places_of_mark(
        self, marked: Chat, text: str, *, prompts: bool = False
    ) -> list[Span] | None:
        """Where a text has what MARK stands for in the chat; None: that cannot be told."""
        other = self.or_none(marked, prompts=prompts)
        if other is None or other == text:  # It is not written.
            return None if other is None else []
        *parts, last = other.split(MARK)
        left = len(text) - len(last) - sum(map(len, parts))
        if not parts or left < 0 or left % len(parts):
            return None
        places, end = [], 0
        for part in parts:
            if not text.startswith(part, end):
                return None
            places.append(Span(end + len(part), end + len(part) + left // len(parts)))
            end = places[-1].end
        return places if text[end:] == last else None

    def written(self, chat: Chat, text: str) -> list[Written]:
        """What the assistant writes in messages of the chat that count; `text` is the chat's.

        Raises ConfigError where that cannot be told.
        """
        own = [n for n, each in enumerate(chat.messages) if each["role"] == "assistant"]
        if self._marked:
            return self._by_marks(chat, own)
        return [self._written(chat, text, n) for n in own if n not in chat.left_out]

    def _by_marks(self, chat: Chat, own: list[int]) -> list[Written]:
        """What stands between the template's marks."""
        rendering = importlib.import_module("transformers.utils.chat_template_utils")
        _, spans = rendering.render_jinja_template(
            conversations=[chat.messages],
            tools=chat.tools,
            chat_template=self._tokenizer.get_chat_template(None, chat.tools),
            return_assistant_tokens_mask=True,
            **self._tokenizer.special_tokens_map,
        )
        found = [Span(*span) for span in spans[0]]
        if len(found) != len(own) and not chat.left_out:  # An end of the text has its own, say.
            last = len(chat.messages) - 1
            return [Written(last, span, has_end=True, is_whole=True) for span in found]
        if len(found) != len(own):
            raise ConfigError(
                f"{chat.where}: the chat template marks {len(found)} texts as the assistant's, "
                f"and it has {len(own)} messages, so none of them can be left out"
            )
        return [
            Written(number, span, has_end=True, is_whole=True)
            for number, span in zip(own, found, strict=True)
            if number not in chat.left_out
        ]

    def _written(self, chat: Chat, text: str, number: int) -> Written:
        if MARK in text:
            raise _refusal(chat, number)
        cut = replace(chat, messages=chat.messages[: number + 1])
        marked, ending = self.or_none(_marked(chat, number)), self.or_none(_marked(cut, number))
        if marked is None or ending is None or not marked.count(MARK) == ending.count(MARK) == 1:
            return self._written_last(chat, text, number)
        before, behind = marked.split(MARK)
        begin = self._begin(chat, number, before, ending.split(MARK)[0])
        end = self._end(behind, ending.split(MARK)[1])
        if begin is None or end is None:
            raise _refusal(chat, number)
        left = len(behind) - end
        last = len(text) - left
        if begin > last or text[:begin] != before[:begin] or not text.endswith(behind[end:]):
            raise _refusal(chat, number)
        content = chat.messages[number]["content"]
        is_whole = not isinstance(content, str) or content.strip() in text[begin:last]
        return Written(number, Span(begin, last), has_end=end > 0, is_whole=is_whole)

    def _begin(self, chat: Chat, number: int, before: str, ending: str) -> int | None:
        """The length of `before` without what the assistant writes ahead of its content."""
        ahead = replace(chat, messages=chat.messages[:number])
        shown, prompt = self.or_none(ahead), self.or_none(ahead, prompts=True)
        same = _common(shown or "", prompt or "")
        for lead in self._leads_of(chat, number):
            rests = {lead.rest, ""} if lead.header else {lead.rest}
            if same and ending.startswith(same + lead.header):  # What it thinks, say.
                rests.add(ending[len(same) + len(lead.header) :])
            for rest in sorted(rests, key=len, reverse=True):
                if before.endswith(lead.header + rest):
                    return len(before) - len(rest)
        return None

    def _leads_of(self, chat: Chat, number: int) -> list[_Lead]:
        role = chat.messages[number - 1]["role"] if number else ""
        if role not in self._leads:
            asked = Chat(chat.where, [{"role": "user", "content": "a"}])
            leads = []
            if number > 0:
                leads = self._leads_behind(replace(chat, messages=chat.messages[:number]))
            self._leads[role] = leads or self._leads_behind(asked)
        return self._leads[role]

    def _leads_behind(self, asked: Chat) -> list[_Lead]:
        """What leads to an answer that is the last message, and to one that another follows."""
        shown, prompt = self.or_none(asked), self.or_none(asked, prompts=True)
        if shown is None or prompt is None:
            return []
        answer = {"role": "assistant", "content": MARK}
        leads = []
        for more in ([], [{"role": "user", "content": "a"}]):
            text = self.or_none(replace(asked, messages=[*asked.messages, answer, *more]))
            if text is None or MARK not in text:
                continue
            whole = text[: text.index(MARK)]
            begin = len(_common(_common(shown, prompt), whole))
            if prompt == shown and begin < len(shown):
                continue
            whole = whole[begin:]
            header = _common(whole, prompt[begin:])
            if not header and whole.strip():  # The template knows no generation prompt.
                header = whole
            leads.append(_Lead(header, whole[len(header) :]))
        return leads

    def end_of_answers(self) -> str | None:
        """The special token that the template writes behind an answer."""
        asked = {"role": "user", "content": "a"}
        text = self.or_none(Chat("", [asked, {"role": "assistant", "content": MARK}]))
        behind = "" if text is None else text.rpartition(MARK)[2]
        end = self._special_at(behind)
        return None if end is None else behind[:end].strip()

    def _end(self, behind: str, ending: str) -> int | None:
        """How much of the text behind the content is the assistant's.

        `ending`: that text where the message is the last one.
        """
        if not ending.strip():
            return 0
        if self._special_at(ending) is not None:  # Others may end it where more follows.
            return self._special_at(behind) or 0
        own = ending.rstrip()
        return len(own) if behind.startswith(own) else None

    def _special_at(self, text: str) -> int | None:
        """The end of the special token that a text begins with, spaces aside."""
        spaces = len(text) - len(text.lstrip())
        here = [each for each in self._specials if text.startswith(each, spaces)]
        return spaces + max(map(len, here)) if here else None

    def _written_last(self, chat: Chat, text: str, number: int) -> Written:
        """The same for a message whose content is not written, such as a call of a tool."""
        if not chat.messages[number].get("tool_calls"):
            raise ConfigError(
                f"{chat.where}: the chat template does not write the content of message {number} "
                "as it is, so what the assistant wrote cannot be told; --train-on all counts all"
            )
        ahead = replace(chat, messages=chat.messages[:number])
        prompt, shown = self.or_none(ahead, prompts=True), self.or_none(ahead)
        cut = self.or_none(replace(chat, messages=chat.messages[: number + 1]))
        if prompt is None or cut is None or prompt == shown:
            raise _refusal(chat, number)
        cut = cut.rstrip()
        if not (cut.startswith(prompt) and text.startswith(cut)):
            raise _refusal(chat, number)
        return Written(number, Span(len(prompt), len(cut)), has_end=True, is_whole=True)


def _marked(chat: Chat, number: int) -> Chat:
    messages = list(chat.messages)
    messages[number] = {**messages[number], "content": MARK}
    return replace(chat, messages=messages)


def _common(first: str, second: str) -> str:
    """What both texts begin with."""
    size = 0
    while size < min(len(first), len(second)) and first[size] == second[size]:
        size += 1
    return first[:size]


def _refusal(chat: Chat, number: int) -> ConfigError:
    return ConfigError(
        f"{chat.where}: what the assistant wrote in message {number} cannot be told from what the "
        "chat template makes of it",
        ("--train-on all counts all tokens", '"train": false in a message leaves that one out'),
    )
