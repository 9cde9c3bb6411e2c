"""A talk with a model, as the texts of one side and the tokens of the other.

`penstock generate` asks by lines of JSON, and has a line of JSON for each:

| line | answer |
|---|---|
| `{"do": "ends"}` | `tokens` that end an answer, by the chat template |
| `{"do": "prompt", "text": ...}` | `tokens` to go on from, and their `text` |
| `{"do": "say", "text": ...}` | `tokens` of the chat with this turn, up to the answer |
| `{"do": "hear", "tokens": [...]}` | the `text` that these add to the answer |
| `{"do": "end"}` | the rest of the answer's `text`; in a chat it is a turn |
| `{"do": "reset"}` | the chat has no turns |

What is refused is an `error`, and changes nothing.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO

from penstock.errors import Error
from penstock.tokenize._answer_text import AnswerText
from penstock.tokenize._encoder import Encoder


class Talk:
    """Knows no lines."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._turns: list[dict[str, str]] = []
        self._question = ""
        self._answer = AnswerText(encoder.decode)
        self._is_chat = False

    def ends(self) -> dict[str, Any]:
        return {"tokens": self._encoder.ends_of_answers()}

    def prompt(self, text: str) -> dict[str, Any]:
        (tokens,) = self._encoder.encode([text])
        self._begin(is_chat=False)
        return {"tokens": tokens, "text": self._answer.add(tokens)}

    def say(self, text: str) -> dict[str, Any]:
        tokens = self._encoder.encode_question(text, self._turns)
        self._begin(is_chat=True)
        self._question = text
        return {"tokens": tokens}

    def hear(self, tokens: list[int]) -> dict[str, Any]:
        return {"text": self._answer.add(tokens)}

    def end(self) -> dict[str, Any]:
        rest = self._answer.finish()
        if self._is_chat:
            self._turns += [
                {"role": "user", "content": self._question},
                {"role": "assistant", "content": self._answer.whole()},
            ]
        return {"text": rest}

    def reset(self) -> dict[str, Any]:
        self._turns = []
        return {}

    def _begin(self, *, is_chat: bool) -> None:
        self._answer = AnswerText(self._encoder.decode)
        self._is_chat = is_chat


def serve(talk: Talk, asked: BinaryIO, answers: BinaryIO) -> None:
    """Answers until nobody asks any more."""
    for line in asked:
        question = json.loads(line)
        action = question.pop("do")
        try:
            answer = getattr(talk, action)(**question)
        except Error as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
