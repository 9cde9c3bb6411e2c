"""What all ranks do, or none: an error on one is raised on all, and the engine goes on.

Unlike telling_others(), which ends whatever the ranks wait for, now and later.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock._engines.ranks.process_groups import telling_others, words_of
from penstock.errors import CommError

if TYPE_CHECKING:
    from penstock._runtime import Communicator

__all__ = ["together"]


def together(communicator: Communicator, what: str, own: Callable[[], str]) -> list[str]:
    """Collective: what own() returns, by rank.

    what: they do, for errors.  own: speaks to no other rank.
    Raises what own() raises, where it does, and elsewhere CommError with its words.
    """
    error: Exception | None = None
    with telling_others(communicator):  # Tells of Ctrl-C, for example.
        try:
            answer = {"text": own()}
        except Exception as caught:
            error, answer = caught, {"error": words_of(caught)}
    answers = [json.loads(each) for each in communicator.exchange(what, json.dumps(answer))]
    if error is not None:
        try:
            raise error
        finally:
            error = None  # Cleared, since it would keep this frame, and what it holds.
    for rank, each in enumerate(answers):
        if "error" in each:
            raise CommError(f"{what}: rank {rank} failed: {each['error']}")
    return [each["text"] for each in answers]
