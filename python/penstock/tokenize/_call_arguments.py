"""Arguments of calls of tools, which some have as an object and some as JSON in a string.

Templates take one of them.  One that writes arguments as JSON makes a string of a string, and one
that writes strings as they are makes Python of an object.  Each gets what it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import Render, shown
from penstock.tokenize._written import MARK

_TEXT = MARK + '"'  # JSON has a backslash in it.
_OBJECT = {MARK: MARK}

Messages = list[dict[str, Any]]


def arguments_for(where: str, messages: Messages, render: Render) -> Messages:
    """The messages with arguments as the template takes them.

    Raises ConfigError for a string that is no object of JSON, where the template takes objects.
    """
    given = [function["arguments"] for function in _functions(messages)]
    if not given:
        return messages
    of_text = render(_with_arguments(messages, lambda _: _TEXT))
    of_object = render(_with_arguments(messages, lambda _: _OBJECT))
    takes_text = of_text is not None and _TEXT in of_text
    takes_objects = of_object is not None and str(_OBJECT) not in of_object
    if takes_text:
        return messages if takes_objects else _with_arguments(messages, _as_text)
    if not takes_objects or (of_text is not None and MARK not in of_text):  # Not written at all.
        return messages
    for text in given:
        if not isinstance(_as_object(text), dict):
            raise ConfigError(
                f"{where}: 'arguments' = {shown(text)}: is no object of JSON, and the chat "
                "template writes them as JSON"
            )
    return _with_arguments(messages, _as_object)


def _functions(messages: Messages) -> Iterator[dict[str, Any]]:
    """What has "arguments", of a string or an object."""
    for message in messages:
        calls = message.get("tool_calls")
        for call in [*(calls if isinstance(calls, list) else []), message.get("function_call")]:
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), (str, dict)):
                yield function


def _with_arguments(messages: Messages, change: Callable[[Any], Any]) -> Messages:
    copies: Messages = json.loads(json.dumps(messages))
    for function in _functions(copies):
        function["arguments"] = change(function["arguments"])
    return copies


def _as_text(given: Any) -> Any:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _as_object(given: Any) -> Any:
    """None: it is no JSON that Python reads."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return None
