"""The command line of penstock.tokenize, and its progress bar."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock import _standard_streams
from penstock._printable import printable
from penstock.errors import ConfigError, Error
from penstock.tokenize._corpus import CorpusWriter
from penstock.tokenize._documents import Batch, batches_of, bytes_in
from penstock.tokenize._encoder import Encoder

_WIDTH = 30


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.tokenize",
        description="Makes a token file of texts, on all cores.  See docs/data.md.",
    )
    parser.add_argument("inputs", nargs="+", type=Path, metavar="TEXT", help="UTF-8 files")
    parser.add_argument(
        "--tokenizer", required=True, type=Path, metavar="DIR", help="with a tokenizer.json in it"
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="CORPUS.bin")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--field", help="TEXTs are JSON lines, with a document each in this field")
    form.add_argument(
        "--chat",
        metavar="FIELD",
        help="TEXTs are JSON lines, with a list of messages each in this field",
    )
    parser.add_argument(
        "--train-on",
        choices=("assistant", "all"),
        default="assistant",
        help="tokens of a chat that count in the loss (default: the assistant's)",
    )
    parser.add_argument(
        "--end-of-text",
        metavar="TOKEN",
        help='ends each document (default: the tokenizer\'s eos_token; "" for none)',
    )
    parser.add_argument(
        "--add-special-tokens",
        action="store_true",
        help="also put in what the tokenizer adds to a text, such as a beginning-of-text token",
    )
    parser.add_argument(
        "--pass-over",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of chats' rows or messages that means nothing; may be given more than once",
    )
    parser.add_argument("--force", action="store_true", help="replace a corpus that is there")
    return parser


class _Bar:
    """A line on a terminal that is written again and again; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = time.monotonic()
        self._shown = 0.0
        self._on = sys.stderr.isatty()

    def show(self, done: int, tokens: int, *, last: bool = False) -> None:
        now = time.monotonic()
        if not self._on or (now - self._shown < 0.1 and not last):
            return
        self._shown = now
        share = done / max(self._total, 1)
        speed = tokens / max(now - self._began, 1e-9)
        bar = ("#" * int(share * _WIDTH)).ljust(_WIDTH, ".")
        line = f"\r[{bar}] {share:4.0%}  {tokens:,} tokens  {speed:,.0f} tokens/s"
        print(line, end="\n" if last else "", file=sys.stderr, flush=True)


def _tokenize(options: argparse.Namespace) -> str:
    encoder = Encoder(
        options.tokenizer,
        end_of_text=options.end_of_text,
        adds_special_tokens=options.add_special_tokens,
        is_for_chats=options.chat is not None,
        passed_over=options.pass_over,
    )
    masks = options.chat is not None and options.train_on == "assistant"
    total = sum(bytes_in(path) for path in options.inputs)
    bar = _Bar(total)
    documents = 0
    with CorpusWriter(options.output, encoder, is_masked=masks, replaces=options.force) as corpus:
        for batch in batches_of(options.inputs, options.field, options.chat, options.pass_over):
            documents += _write(batch, encoder, corpus, masks=masks)
            bar.show(batch.bytes_read, corpus.tokens)
        if corpus.tokens == 0:
            raise ConfigError("the texts hold no tokens: there is nothing to write")
        if corpus.counted == 0:
            raise ConfigError(
                "no token of the chats counts in the loss: no message is the assistant's",
                ("--train-on all counts all of them",),
            )
        bar.show(total, corpus.tokens, last=True)
        corpus.put_in_place()
    return (
        f"{options.output}: {corpus.tokens} tokens of {documents} documents, "
        f"{encoder.token_bytes} bytes each, vocabulary {encoder.vocabulary}"
    )


def _write(batch: Batch, encoder: Encoder, corpus: CorpusWriter, *, masks: bool) -> int:
    """Returns the number of documents that have tokens."""
    written = 0
    if batch.chats:
        for where, messages in batch.chats:
            tokens, counts = encoder.encode_chat(where, messages, masks=masks)
            corpus.write(tokens, counts)
            written += bool(tokens)
    for tokens in encoder.encode([text for _, text in batch.texts]):
        corpus.write(tokens)
        written += bool(tokens)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for what the user can mend (docs/exit_codes.md)."""
    _standard_streams.open_missing()
    options = _parser().parse_args(arguments)
    try:
        summary = _tokenize(options)
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = printable(str(error.filename or options.output))
        print(f"penstock: {where}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return _standard_streams.say(summary)
