"""What a chat says beside its messages' roles and texts, and what becomes of it.

A trainer that wrote the file may mean something by such a key: that a message does not count, or
that tools are told of.  A key that is set is used, is one of the table, is named by --pass-over,
or is an error; none is passed over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
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

_NEUTRAL: dict[str, Any] = {"weight": 1, "train": True, "training": True}
"""Of a message: the values that say what holds without them."""

Render = Callable[[list[dict[str, Any]]], str]


def _is_set(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != {}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "..."


def _refuse(where: str, key: str, value: Any, why: str) -> None:
    raise ConfigError(
        f"{where}: {key!r} = {_shown(value)}: {why}",
        (f"--pass-over {key} passes it over in all rows",),
    )


def check_row(where: str, row: dict[str, Any], field: str, passed_over: Collection[str]) -> None:
    """Raises ConfigError for a key beside the messages' that may mean something."""
    for key, value in row.items():
        if key == field or key in _OF_ROWS or key in passed_over or not _is_set(value):
            continue
        _refuse(where, key, value, "penstock.tokenize does not use this key of a row")


def check_messages(
    where: str, messages: list[dict[str, Any]], render: Render, passed_over: Collection[str]
) -> list[dict[str, Any]]:
    """The messages as the template gets them: without what is passed over.

    A key is used where the text without it is another one.
    Raises ConfigError for a key that is set and is not used.
    """
    kept = [
        {key: value for key, value in each.items() if key not in passed_over} for each in messages
    ]
    whole: str | None = None
    for number, message in enumerate(kept):
        for key, value in message.items():
            if key in ("role", "content") or not _is_set(value) or value == _NEUTRAL.get(key):
                continue
            whole = render(kept) if whole is None else whole
            without = [dict(each) for each in kept]
            del without[number][key]
            if _rendered_or_none(render, without) == whole:
                why = f"the chat template does not use this key of message {number}"
                _refuse(where, key, value, why)
    return kept


def _rendered_or_none(render: Render, messages: list[dict[str, Any]]) -> str | None:
    try:
        return render(messages)
    except ConfigError:  # The template needs the key.
        return None


def check_contents(where: str, messages: list[dict[str, Any]], render: Render) -> None:
    """Raises ConfigError for a content that is no text, where the template does not take it apart.

    One that is null has to come out as no text, and a list of parts as their texts.
    """
    for number, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            continue
        text = "" if content is None else _text_of_parts(content)
        same = [*messages[:number], {**message, "content": text}, *messages[number + 1 :]]
        if text is None or _rendered_or_none(render, messages) != _rendered_or_none(render, same):
            raise ConfigError(
                f"{where}: the content of message {number} is {_shown(content)}, and the chat "
                "template takes texts alone"
            )


def _text_of_parts(content: Any) -> str | None:
    """The text of [{"type": "text", "text": ...}, ...]; None where it is anything else."""
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    is_text = all(isinstance(text, str) for text in texts) and len(texts) == len(content)
    return "".join(map(str, texts)) if is_text else None
