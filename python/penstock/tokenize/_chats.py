"""Rows of chats, in the forms that people have them in, as messages.

A list of {"role", "content"} or of {"from", "value"}; instruction, input and output; prompt and
completion, as texts or messages.  Which one it is, the field says that is asked for.  Knows no
template.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import check_row, is_set, kind, shown

Message = dict[str, Any]

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "assistant"), "assistant"),
    **dict.fromkeys(("tool", "observation"), "tool"),
    "system": "system",
}
"""Who "from" names, and the role that templates know."""

_USUAL = ("system", "developer", "user", "assistant", "tool")

_LISTS = ("messages", "conversations", "conversation", "chat", "dialogue", "turns")
"""Fields that usually hold a list of messages."""


@dataclass(frozen=True)
class Chat:
    """Messages of {"role", "content", ...}, for a template."""

    where: str  # "file:line".
    messages: list[Message]
    tools: list[Any] | None = None
    left_out: frozenset[int] = field(default=frozenset())  # Assistant's messages not to count.
    silenced: frozenset[int] = field(default=frozenset())  # Messages that keys leave out.


@dataclass(frozen=True)
class Completion:
    """Two texts without a template; the second counts."""

    where: str
    prompt: str
    completion: str


def chat_of(
    where: str, row: dict[str, Any], name: str, passed_over: Collection[str]
) -> Chat | Completion:
    """The chat of a row.

    `name`: its field of messages, "instruction" or "prompt".
    Raises ConfigError for a row of another form, and for a key that is there and not used.
    """
    row = {key: value for key, value in row.items() if key == name or key not in passed_over}
    _refuse_preference(where, row)
    if name not in row:
        raise ConfigError(
            f"{where}: has no field {name!r}; its fields: {_named(row)}",
            _nearest(row),
        )
    if name == "instruction" and isinstance(row[name], str):
        used, messages = _instruction(where, row)
        left_out: frozenset[int] = frozenset()
    elif name == "prompt" and "completion" in row:
        if isinstance(row["prompt"], str) and isinstance(row["completion"], str):
            check_row(where, row, ("prompt", "completion"))
            return Completion(where, row["prompt"], row["completion"])
        used = ["prompt", "completion"]
        prompt = _messages(where, row["prompt"], "prompt", passed_over)
        messages = [*prompt, *_messages(where, row["completion"], "completion", passed_over)]
        left_out = frozenset(range(len(prompt)))
    else:
        used, left_out = [name], frozenset()
        messages = _messages(where, row[name], name, passed_over)
    check_row(where, row, (*used, "system", "tools"))
    messages, shift = _with_system(where, messages, row.get("system"))
    messages, silent = _trained(where, messages)
    left_out = frozenset(n + shift for n in left_out)
    return Chat(where, messages, _tools(where, row), left_out | silent, silent)


def _refuse_preference(where: str, row: dict[str, Any]) -> None:
    if "chosen" in row and "rejected" in row:
        raise ConfigError(
            f"{where}: 'chosen' and 'rejected' are a pair of preference, which training on texts "
            "has no use for",
            ("--chat chosen --pass-over rejected trains on those that were chosen",),
        )


def _nearest(row: dict[str, Any]) -> tuple[str, ...]:
    lists = [name for name in _LISTS if isinstance(row.get(name), list)]
    if lists:
        return (f"its messages are in --chat {lists[0]}",)
    if "instruction" in row:
        return ("instruction, input and output: --chat instruction",)
    if "prompt" in row and "completion" in row:
        return ("prompt and completion: --chat prompt",)
    if "text" in row:
        return ("a text in each row: --field text",)
    return ()


def _text(where: str, row: dict[str, Any], name: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {name!r} must be a string, found {kind(value)}")
    return value


def _instruction(where: str, row: dict[str, Any]) -> tuple[list[str], list[Message]]:
    if "output" not in row:
        raise ConfigError(
            f"{where}: has an 'instruction' and no 'output'; its fields: {_named(row)}"
        )
    asked = [_text(where, row, "instruction"), _text(where, row, "input")]
    messages = [
        {"role": "user", "content": "\n\n".join(each for each in asked if each)},
        {"role": "assistant", "content": _text(where, row, "output")},
    ]
    return ["instruction", "input", "output"], messages


def _messages(where: str, value: Any, name: str, passed_over: Collection[str]) -> list[Message]:
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else kind(value)
        raise ConfigError(
            f'{where}: {name!r} must be a list of messages {{"role": ..., "content": ...}} or '
            f'{{"from": ..., "value": ...}}, found {found}'
        )
    return [_message(where, each, number, passed_over) for number, each in enumerate(value)]


def _message(where: str, each: Any, number: int, passed_over: Collection[str]) -> Message:
    title = f"{where}: message {number}"
    if not isinstance(each, dict):
        raise ConfigError(f"{title} must be an object, found {kind(each)}")
    each = {key: value for key, value in each.items() if key not in passed_over}
    if is_set(each.get("tool_calls")):
        each["tool_calls"] = _list(title, "tool_calls", each["tool_calls"])
    if "from" in each and "value" in each and "role" not in each and "content" not in each:
        who = each.pop("from")
        if not isinstance(who, str) or who not in _ROLES:
            raise ConfigError(f"{title}: 'from' = {shown(who)}: must be one of {_named(_ROLES)}")
        return {"role": _ROLES[who], "content": each.pop("value"), **each}
    if not isinstance(each.get("role"), str):
        raise ConfigError(
            f'{title} must have "role" and "content", or "from" and "value"; its keys: '
            f"{_named(each)}"
        )
    if each["role"] in _ROLES and each["role"] not in _USUAL:
        right = _ROLES[each["role"]]
        raise ConfigError(
            f"{title}: 'role' = {shown(each['role'])}: templates know it as {right!r}"
        )
    if "content" not in each and not each.get("tool_calls"):
        raise ConfigError(f"{title} has no 'content'; its keys: {_named(each)}")
    return {"content": None, **each}


def _named(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _with_system(where: str, messages: list[Message], system: Any) -> tuple[list[Message], int]:
    """The messages behind the row's own system prompt, and by how many they are moved."""
    if not is_set(system):
        return messages, 0
    if not isinstance(system, str):
        raise ConfigError(f"{where}: 'system' must be a string, found {kind(system)}")
    if messages[0]["role"] == "system":
        raise ConfigError(
            f"{where}: has 'system' = {shown(system)}, and a message of the system, too",
            ("--pass-over system passes the first over in all rows",),
        )
    return [{"role": "system", "content": system}, *messages], 1


def _tools(where: str, row: dict[str, Any]) -> list[Any] | None:
    tools = row.get("tools")
    if not is_set(tools):
        return None
    return _list(where, "tools", tools) or None


def _list(where: str, key: str, value: Any) -> list[Any]:
    if isinstance(value, str):  # A column of a table has it so.
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ConfigError(f"{where}: {key!r} = {shown(value)}: is no JSON") from None
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {key!r} must be a list, found {kind(value)}")
    return value


def _trained(where: str, messages: list[Message]) -> tuple[list[Message], frozenset[int]]:
    """The messages without "weight", "train" and "training"; which of them these leave out."""
    rest, left_out = [], set()
    for number, message in enumerate(messages):
        kept = dict(message)
        for key in ("weight", "train", "training"):
            if key not in kept:
                continue
            value = kept.pop(key)
            if value is None:
                continue
            if not isinstance(value, (bool, int, float)) or value not in (0, 1):
                allowed = "0 or 1" if key == "weight" else "true or false"
                raise ConfigError(
                    f"{where}: message {number}: {key!r} = {shown(value)}: must be {allowed}"
                )
            if not value:
                if message["role"] == "assistant":
                    left_out.add(number)
            elif message["role"] != "assistant" and key != "weight":
                raise ConfigError(
                    f"{where}: message {number}: {key!r} = true, and its role is "
                    f"{message['role']!r}: what the assistant writes counts, and nothing else",
                    (f"--pass-over {key} passes it over in all rows",),
                )
        rest.append(kept)
    return rest, frozenset(left_out)
