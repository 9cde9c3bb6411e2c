"""The command line of penstock.tokenize, and its progress bar."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock import _standard_streams
from penstock._printable import printable
from penstock.errors import ConfigError, Error
from penstock.tokenize._chats import Chat
from penstock.tokenize._corpus import CorpusWriter
from penstock.tokenize._documents import Batch, batches_of, bytes_in
from penstock.tokenize._encoder import Encoder
from penstock.tokenize._samples import Put, Samples, Stream
from penstock.tokenize._shown import Shown

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
    form.add_argument(
        "--field", help="TEXTs are JSON lines or an array, with a document each in this field"
    )
    form.add_argument(
        "--chat",
        metavar="FIELD",
        help="TEXTs are JSON lines or an array, with a chat each: FIELD has its messages, or is "
        '"instruction" (with input, output) or "prompt" (with completion)',
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
    parser.add_argument(
        "--special-tokens-in-texts",
        action="store_true",
        help="what users of chats write may have special tokens (default: it is letters)",
    )
    parser.add_argument(
        "--packing",
        choices=("cut", "whole", "one"),
        default="cut",
        help="documents in a stream that is cut into samples (default), whole in samples of "
        "--length tokens, or one in each",
    )
    parser.add_argument(
        "--length", type=int, metavar="TOKENS", help="of a sample: model.sequence_length"
    )
    parser.add_argument(
        "--too-long",
        choices=("drop", "cut"),
        default="drop",
        help="what becomes of documents longer than --length (default: drop)",
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="print N samples, with what counts marked"
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


def _check(options: argparse.Namespace) -> None:
    if options.packing == "cut":
        if options.length is not None or options.too_long != "drop":
            given = "--length" if options.length is not None else "--too-long"
            raise ConfigError(
                f"{given}: is of --packing whole and --packing one; a stream is cut by "
                "model.sequence_length"
            )
    elif options.length is None or options.length < 2:
        found = "is missing" if options.length is None else f"{options.length}: must be at least 2"
        raise ConfigError(
            f"--packing {options.packing}: --length {found}",
            ("it is the model.sequence_length that will be trained with",),
        )
    if options.show < 0:
        raise ConfigError(f"--show {options.show}: must be 0 or more")


def _tokenize(options: argparse.Namespace) -> tuple[str, str]:
    """What was done, and the samples that are shown."""
    _check(options)
    encoder = Encoder(
        options.tokenizer,
        end_of_text=options.end_of_text,
        adds_special_tokens=options.add_special_tokens,
        is_for_chats=_needs_template(options),
        types_special_tokens=options.special_tokens_in_texts,
    )
    is_packed = options.packing != "cut"
    if is_packed and encoder.end_of_text is None:
        raise ConfigError(
            f"--packing {options.packing}: documents have no end that tells them apart",
            ("give --end-of-text TOKEN",),
        )
    counts_some = options.chat is not None and options.train_on == "assistant"
    total = sum(bytes_in(path) for path in options.inputs)
    bar = _Bar(total)
    shown = Shown(options.show, encoder.decode_whole, encoder.end_of_text)
    documents = 0
    with CorpusWriter(
        options.output,
        encoder,
        is_masked=counts_some or is_packed,
        replaces=options.force,
        sample_tokens=options.length,
    ) as corpus:

        def put(tokens: list[int], counts: list[bool] | None) -> None:
            shown.add(tokens, counts)
            corpus.write(tokens, counts)

        samples = _samples(options, encoder, put)
        seen = 0
        for batch in batches_of(options.inputs, options.field, options.chat, options.pass_over):
            for where, tokens, counts in _encoded(batch, encoder, masks=counts_some):
                samples.add(where, tokens, counts)
                documents += bool(tokens)
                seen += len(tokens)
            bar.show(batch.bytes_read, seen)
        told = samples.finish() if documents else ""
        if documents == 0:
            raise ConfigError("the texts hold no tokens: there is nothing to write")
        if corpus.counted == 0:
            raise ConfigError(
                "no token of the chats counts in the loss: no message is the assistant's, and not "
                "left out",
                ("--train-on all counts all of them",),
            )
        bar.show(total, seen, last=True)
        corpus.put_in_place()
    if encoder.cut_contents:
        told += (
            f"\nthe chat template leaves out parts of {encoder.cut_contents} messages, or does not "
            "mark them as the assistant's"
        )
    if encoder.changed_calls:
        told += (
            f"\narguments of calls are objects where the chat template takes text of JSON, or the "
            f"other way round, in {encoder.changed_calls} chats; it got what it takes"
        )
    if encoder.typed_documents:
        told += (
            f"\nspecial tokens that somebody typed are letters, in {encoder.typed_documents} "
            "documents; --special-tokens-in-texts makes them tokens"
        )
    if options.chat is not None:
        told += f"\n{corpus.counted} tokens count; documents end with {encoder.end!r}"
    return (
        f"{options.output}: {corpus.tokens} tokens of {documents} documents, "
        f"{encoder.token_bytes} bytes each, vocabulary {encoder.vocabulary}{told}",
        shown.text(),
    )


def _needs_template(options: argparse.Namespace) -> bool:
    """Prompts and completions may be texts, or messages: the first row says it."""
    if options.chat != "prompt":
        return options.chat is not None
    rows = batches_of(options.inputs, None, options.chat, options.pass_over)
    return any(isinstance(each, Chat) for each in next(rows).chats[:1])


def _samples(options: argparse.Namespace, encoder: Encoder, put: Put) -> Stream | Samples:
    if options.packing == "cut":
        return Stream(put)
    assert encoder.end_of_text is not None
    return Samples(
        put,
        options.length,
        encoder.end_of_text,
        packs=options.packing == "whole",
        cuts=options.too_long == "cut",
    )


def _encoded(
    batch: Batch, encoder: Encoder, *, masks: bool
) -> Iterator[tuple[str, list[int], list[bool] | None]]:
    """Each document: where it is from, its tokens, and which of them count."""
    for chat in batch.chats:
        yield chat.where, *encoder.encode_document(chat, masks=masks)
    places = [where for where, _ in batch.texts]
    tokens = encoder.encode([text for _, text in batch.texts])
    for where, these in zip(places, tokens, strict=True):
        yield where, these, None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for what the user can mend (docs/exit_codes.md)."""
    _standard_streams.open_missing()
    options = _parser().parse_args(arguments)
    try:
        summary, shown = _tokenize(options)
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = printable(str(error.filename or options.output))
        print(f"penstock: {where}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return _standard_streams.say(summary, shown)
