"""Texts to tokens, or back, by a folder's tokenizer: what `penstock generate` and samples ask.

Usage: python -m penstock.tokenize.text encode|decode|talk|chat DIR.  encode reads a text from its
input and prints a token's number a line; decode is the other way round.  talk answers lines of
JSON (_talk.py); chat does so for a folder with a chat template.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import _standard_streams
from penstock.errors import Error
from penstock.tokenize._encoder import Encoder
from penstock.tokenize._talk import Talk, serve


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 for what the user can mend."""
    _standard_streams.open_missing()
    if len(arguments) != 2 or arguments[0] not in ("encode", "decode", "talk", "chat"):
        print(__doc__, file=sys.stderr)
        return 2
    action, folder = arguments
    try:
        encoder = Encoder(
            Path(folder), end_of_text="", adds_special_tokens=True, is_for_chats=action == "chat"
        )
        if action in ("talk", "chat"):
            serve(Talk(encoder), sys.stdin.buffer, sys.stdout.buffer)
            return 0
        given = sys.stdin.buffer.read()
        if action == "decode":
            answer = encoder.decode([int(token) for token in given.split()])
        else:
            (tokens,) = encoder.encode([given.decode("utf-8", errors="replace")])
            answer = "\n".join(map(str, tokens))
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(answer.encode("utf-8", errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
