"""A chat template: chats to text, and which of the text the assistant writes.

A template may say it with marks, {% generation %}, which are then followed.  Else it is found by
rendering.  A mark in place of a message's content tells where that is in the whole text.  The
generation prompt tells what stands before an answer, and the text that ends with the message tells
its end.  So a template that writes earlier turns in another way is no matter.  What cannot be found
so is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import is_set
from penstock.tokenize._chats import Chat, Message
from penstock.tokenize._generation_marks import GenerationMarks
from penstock.tokenize._written import MARK, Span, Written

_PLAIN = {"role", "content"}


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
        self._others: str | None = None
        self._leads: dict[str, list[_Lead]] = {}
        self._marks = GenerationMarks(tokenizer)

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
        """The places of a text with what MARK stands for in the chat; None: that cannot be told."""
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
        if self._marks.are_for(chat):
            return self._marks.written(chat, own)
        return [self._written(chat, text, n) for n in own if n not in chat.left_out]

    def _written(self, chat: Chat, text: str, number: int) -> Written:
        if MARK in text:
            raise _refusal(chat, number)
        cut = replace(chat, messages=chat.messages[: number + 1])
        marked, ending = self.or_none(_marked(chat, number)), self.or_none(_marked(cut, number))
        if marked is None or ending is None or not marked.count(MARK) == ending.count(MARK) == 1:
            return self._written_last(chat, text, number)
        before, behind = marked.split(MARK)
        begin = self._begin(chat, number, before, ending.split(MARK)[0])
        end = self._end(chat, number, behind, ending.split(MARK)[1])
        if begin is None or end is None:
            raise _refusal(chat, number)
        left = len(behind) - end
        last = len(text) - left
        if begin > last or text[:begin] != before[:begin] or not text.endswith(behind[end:]):
            raise _refusal(chat, number)
        content = chat.messages[number]["content"]
        is_whole = not isinstance(content, str) or content.strip() in text[begin:last]
        has_end = end > 0 and (
            _is_plain(chat.messages[number]) or self._has_end(chat, number, text[begin:last])
        )
        return Written(number, Span(begin, last), has_end=has_end, is_whole=is_whole)

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

    def _end(self, chat: Chat, number: int, behind: str, ending: str) -> int | None:
        """How much of the text behind the content of message `number` is the assistant's.

        `ending`: that text where the message is the last one.
        """
        own = self._own(chat, number, ending)
        if own and behind.startswith(own):
            return len(own)
        ends = [each for each in self._specials if own.endswith(each)]
        said = own[: len(own) - max(map(len, ends), default=0)].rstrip()
        if not behind.startswith(said) or (own and not ends):
            return None
        other = self._other_end(chat, number, behind, len(said), own[len(said) :].strip())
        return None if other is None else len(said) + other

    def _own(self, chat: Chat, number: int, ending: str) -> str:
        """The `ending` without what the template writes behind all messages."""
        if self._special_at(ending) is not None and _is_plain(chat.messages[number]):
            return ending[: self._end_at(ending)]
        return self._without_tail(chat, number, ending)

    def _without_tail(self, chat: Chat, number: int, text: str) -> str:
        plain = self._plain_ending(chat, number)
        tail = plain[self._end_at(plain) :].strip()
        return text.rstrip().removesuffix(tail).rstrip()

    def _end_at(self, ending: str) -> int:
        """The size of what ends an answer that is the last: a special token, or more of them where
        they end others, too.
        """
        end = self._special_at(ending)
        if end is None:
            return len(ending.rstrip())
        while more := self._special_at(ending[end:]):
            known = self._ends_of_others().startswith(ending[: end + more])
            if not known or ending[end].isspace():
                break
            end += more
        return end

    def _ends_of_others(self) -> str:
        """What is behind an answer that a question follows."""
        if self._others is None:
            roles = (("user", "a"), ("assistant", MARK), ("user", "a"))
            messages = [{"role": role, "content": content} for role, content in roles]
            self._others = (self.or_none(Chat("", messages)) or "").rpartition(MARK)[2]
        return self._others

    def _plain_ending(self, chat: Chat, number: int) -> str:
        """What is behind an answer of text alone that is the last, in place of message `number`."""
        answer = {"role": "assistant", "content": MARK}
        text = self.or_none(replace(chat, messages=[*chat.messages[:number], answer]))
        return (text or "").rpartition(MARK)[2]

    def _has_end(self, chat: Chat, number: int, said: str) -> bool:
        """Whether a token ends what a message with calls says."""
        return said.endswith(self._specials) or bool(self._plain_ending(chat, number).strip())

    def _other_end(
        self, chat: Chat, number: int, behind: str, begin: int, known: str
    ) -> int | None:
        """The size of the special token at `begin` that ends message `number`; 0: there is none.

        `known`: the one that ends it where it is the last.  Another one may lead to the next
        message, which then begins so where it follows no answer, too.
        """
        size = self._special_at(behind[begin:])
        if size is None:
            return 0
        token = behind[begin : begin + size].strip()
        rest = chat.messages[number + 1 :]
        unanswered = replace(chat, messages=[*chat.messages[:number], *rest])
        if token == known or self._ends_turns(unanswered, number, token):
            return size
        marked = self.or_none(_marked(_marked(chat, number), number + 1))
        if marked is None or marked.count(MARK) != 2:
            return None
        lead = marked.split(MARK)[1][begin:].lstrip()
        begins = [_marked(unanswered, number), _marked(replace(chat, messages=rest), 0)]
        for text in map(self.or_none, begins):  # Some want turns to alternate.
            if text is not None and text.count(MARK) == 1:
                return 0 if text.partition(MARK)[0].endswith(lead) else size
        return 0

    def _ends_turns(self, chat: Chat, number: int, token: str) -> bool:
        """Whether a user's turn ends with it, or message `number`."""
        asked = Chat(chat.where, [{"role": "user", "content": MARK}])
        for marked in (asked, _with_content(chat, number, MARK, cuts=True)):
            behind = (self.or_none(marked) or "").rpartition(MARK)[2]
            if behind[: self._special_at(behind) or 0].strip() == token:
                return True
        return False

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
        content = chat.messages[number]["content"]
        is_left_out = self.or_none(_with_content(chat, number, "")) == text  # More follows here.
        for said in (content, "") if is_left_out else (content,):
            cut = self.or_none(_with_content(chat, number, said, cuts=True))
            if prompt is None or cut is None or prompt == shown:
                continue
            cut = self._without_tail(chat, number, cut)
            if cut.startswith(prompt) and text.startswith(cut):
                span, has_end = Span(len(prompt), len(cut)), self._has_end(chat, number, cut)
                return Written(number, span, has_end=has_end, is_whole=said == content)
        raise _refusal(chat, number)


def _is_plain(message: Message) -> bool:
    """Whether it says a text and nothing else."""
    return not any(is_set(value) for key, value in message.items() if key not in _PLAIN)


def _marked(chat: Chat, number: int) -> Chat:
    return _with_content(chat, number, MARK)


def _with_content(chat: Chat, number: int, content: Any, *, cuts: bool = False) -> Chat:
    """The chat with another content in message `number`; `cuts`: that is its last message."""
    rest = [] if cuts else chat.messages[number + 1 :]
    changed = {**chat.messages[number], "content": content}
    return replace(chat, messages=[*chat.messages[:number], changed, *rest])


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
