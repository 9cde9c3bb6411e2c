"""What a chat says beside its messages' roles and texts, and what becomes of it.

A trainer that wrote the file may mean something by such a key.  A key that is set is used, is one
of the table, is named by --pass-over, or is an error; none is passed over in silence.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

from penstock.errors import ConfigError

_OF_ROWS = {
    **dict.fromkeys(("id", "_id", "idx", "index", "uuid", "hash"), "names the row"),
    **dict.fromkeys(("conversation_id", "dialogue_id", "prompt_id"), "names the chat"),
    **dict.fromkeys(("source", "dataset", "origin", "url", "license", "split"), "says where from"),
    **dict.fromkeys(("created_at", "timestamp", "date"), "says when"),
    **dict.fromkeys(("language", "lang", "category", "topic", "subset", "tags"), "sorts rows"),
}
"""Keys of a row that change no token, and why."""

Render = Callable[[list[dict[str, Any]]], "str | None"]
"""The text of messages; None where the template refuses them."""


def is_set(value: Any) -> bool:
    """Whether a value says anything."""
    return value is not None and value != "" and value != [] and value != {}


def shown(value: Any) -> str:
    """The value as JSON, cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "..."


def kind(value: Any) -> str:
    """What kind of JSON's values it is, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")


@contextlib.contextmanager
def refusing_depth(where: str) -> Iterator[None]:
    """Refuses JSON that is nested deeper than Python goes, around what walks through it."""
    try:
        yield
    except RecursionError:
        raise ConfigError(f"{where}: is nested too deep") from None


def _refuse(where: str, key: str, value: Any, why: str) -> None:
    raise ConfigError(
        f"{where}: {key!r} = {shown(value)}: {why}",
        (f"--pass-over {key} passes it over in all rows",),
    )


def check_row(where: str, row: dict[str, Any], used: Collection[str]) -> None:
    """Raises ConfigError for a key beside those `used` that may mean something."""
    for key, value in row.items():
        if key in used or key in _OF_ROWS or not is_set(value):
            continue
        _refuse(where, key, value, "penstock.tokenize does not use this key of a row")


def check_tools(where: str, tools: Any, whole: str, without: str | None) -> None:
    """Raises ConfigError where the template writes the same without tools."""
    if tools is not None and whole == without:
        _refuse(where, "tools", tools, "the chat template does not use it")


def check_messages(where: str, messages: list[dict[str, Any]], whole: str, render: Render) -> None:
    """Raises ConfigError for a key that is set and is not used.

    A key is used where the text without it is not `whole`.
    """
    for number, message in enumerate(messages):
        for key, value in message.items():
            if key in ("role", "content") or not is_set(value):
                continue
            without = [dict(each) for each in messages]
            del without[number][key]
            if render(without) == whole:
                why = f"the chat template does not use this key of message {number}"
                _refuse(where, key, value, why)


def plain_contents(
    where: str, messages: list[dict[str, Any]], render: Render
) -> list[dict[str, Any]]:
    """The messages, where the template does not take a content apart with its text instead.

    Nothing beside a call of a tool is an empty text, and parts of text are their texts.
    Raises ConfigError for other contents that the template does not know.
    """
    for number, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            continue
        calls = bool(message.get("tool_calls"))
        text = "" if content is None else _text_of_parts(content)
        same = [*messages[:number], {**message, "content": text}, *messages[number + 1 :]]
        if text is not None and (calls or content is not None or render(messages) == render(same)):
            messages = same
        else:
            raise ConfigError(
                f"{where}: the content of message {number} is {shown(content)}, and the chat "
                "template takes texts alone"
            )
    return messages


def _text_of_parts(content: Any) -> str | None:
    """The text of [{"type": "text", "text": ...}, ...]; None where it is anything else."""
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in content if isinstance(part, dict) and _is_text(part)]
    is_text = all(isinstance(text, str) for text in texts) and len(texts) == len(content)
    return "".join(map(str, texts)) if is_text else None


def _is_text(part: dict[str, Any]) -> bool:
    return part.get("type", "text") == "text" and {*part} <= {"type", "text"}
