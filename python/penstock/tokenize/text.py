"""One text to tokens, or back, by a folder's tokenizer: what `penstock generate --prompt` asks.

Usage: python -m penstock.tokenize.text encode|chat|decode DIR.  encode reads a text from its input
and prints a token's number a line; chat takes it for what a user says, and ends where the answer
begins; decode is the other way round.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import _standard_streams
from penstock.errors import Error
from penstock.tokenize._encoder import Encoder


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 for what the user can mend."""
    _standard_streams.open_missing()
    if len(arguments) != 2 or arguments[0] not in ("encode", "chat", "decode"):
        print(__doc__, file=sys.stderr)
        return 2
    action, folder = arguments
    given = sys.stdin.buffer.read()
    try:
        encoder = Encoder(
            Path(folder), end_of_text="", adds_special_tokens=True, is_for_chats=action == "chat"
        )
        text = given.decode("utf-8", errors="replace")
        if action == "decode":
            answer = encoder.decode([int(token) for token in given.split()])
        elif action == "chat":
            answer = "\n".join(map(str, encoder.encode_question(text)))
        else:
            (tokens,) = encoder.encode([text])
            answer = "\n".join(map(str, tokens))
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(answer.encode("utf-8", errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
