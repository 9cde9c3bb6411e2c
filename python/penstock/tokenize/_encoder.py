"""Hugging Face's tokenizer of a folder: texts and chats to token ids."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from penstock._foreign_files import read_foreign
from penstock.errors import ConfigError
from penstock.tokenize._call_arguments import arguments_for
from penstock.tokenize._chat_keys import (
    check_messages,
    check_tools,
    plain_contents,
    refusing_depth,
)
from penstock.tokenize._chats import Chat, Completion
from penstock.tokenize._leaves import with_each
from penstock.tokenize._special_texts import Encoded, SpecialTexts
from penstock.tokenize._template import Template
from penstock.tokenize._tokenizer_config import TokenizerConfig
from penstock.tokenize._written import MARK, Span


class Encoder:
    """Knows no files but those of the tokenizer's folder.

    Raises ConfigError where the folder has no tokenizer.json, a package is missing, or the
    end-of-text token is not in the vocabulary.
    """

    def __init__(
        self,
        folder: Path,
        *,
        end_of_text: str | None,
        adds_special_tokens: bool,
        is_for_chats: bool,
        types_special_tokens: bool = False,
    ) -> None:
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise ConfigError(
                "the package tokenizers is not installed; install it with: pip install tokenizers"
            ) from None
        if not _can_start_threads():
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        content = _tokenizer_file(folder)
        if content.startswith(b"version https://git-lfs"):
            raise ConfigError(
                f"{folder / 'tokenizer.json'}: is a pointer of Git LFS, in place of the file; "
                "git lfs pull fetches that"
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # The package raises plain Exception.
            raise ConfigError(f"{folder / 'tokenizer.json'}: cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = TokenizerConfig(folder)
        config.check(self._tokenizer, adds_special_tokens=adds_special_tokens)
        self._adds_special_tokens = adds_special_tokens
        # What adds tokens also moves those of spaces to the letters beside them.
        self._adds_tokens = self._tokenizer.post_processor
        self._tokenizer.post_processor = None
        self._types_special_tokens = types_special_tokens
        self._specials = SpecialTexts(self._tokenizer)
        self._template = None
        if is_for_chats:
            self._template = Template(_transformers_tokenizer(folder), self._specials.texts)
        self.cut_contents = 0  # Messages of which the template leaves something out.
        self.changed_calls = 0  # Chats with arguments in a form that the template does not take.
        self.typed_documents = 0  # Documents with letters of special tokens.
        self.name = folder.resolve().name
        self.hash = hashlib.sha256(content).hexdigest()
        self.vocabulary = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.token_bytes = 2 if self.vocabulary <= 1 << 16 else 4
        self.end_of_text = self._id_of_end(folder, config, end_of_text)
        if end_of_text is None and is_for_chats:
            self.end_of_text = self._end_of_chats(config, self.end_of_text)

    def _id_of_end(self, folder: Path, config: TokenizerConfig, given: str | None) -> int | None:
        token = config.token("eos_token") if given is None else given
        if token == "":
            return None
        if token is None:
            raise ConfigError(
                f"{folder}: names no eos_token in tokenizer_config.json; "
                'give --end-of-text TOKEN, or --end-of-text "" for none'
            )
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ConfigError(f"{folder}: its vocabulary has no end-of-text token {token!r}")
        return int(number)

    def _end_of_chats(self, config: TokenizerConfig, end: int | None) -> int | None:
        """The end of a text, or, where the template ends turns with it, a token that it lacks.

        None, where the tokenizer has none to spare.
        """
        assert self._template is not None
        roles = ("user", "assistant", "user", "assistant")
        chat = Chat("", [{"role": role, "content": "a"} for role in roles])
        text = self._template.or_none(chat)
        used = self._tokenizer.encode(text or "", add_special_tokens=False).ids
        if end not in used[:-1]:
            return end
        specials = self._specials.numbers()
        named = [config.token("pad_token"), config.token("unk_token")]
        spare = [text for text in specials.values() if re.search("reserved|unused|extra", text)]
        for token in [*named, *spare, *specials.values()]:
            number = None if token is None else self._tokenizer.token_to_id(token)
            if number in specials and number not in used:
                return int(number)
        return None

    @property
    def end(self) -> str | None:
        """The text of the token that ends documents."""
        return None if self.end_of_text is None else self._tokenizer.id_to_token(self.end_of_text)

    def decode_whole(self, tokens: list[int]) -> str:
        """Their text, with special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def _ended(self, tokens: list[int]) -> list[int]:
        if not tokens or self.end_of_text is None or tokens[-1] == self.end_of_text:
            return tokens
        return [*tokens, self.end_of_text]

    def encode(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text, with its end-of-text token; on all cores, where threads can be
        started.

        Nothing for an empty text.
        """
        with self._added():
            encodings = self._tokenizer.encode_batch_fast(
                texts, add_special_tokens=self._adds_special_tokens
            )
        for text, encoding in zip(texts, encodings, strict=True):
            yield self._ended(encoding.ids) if text else []

    @contextlib.contextmanager
    def _added(self) -> Iterator[None]:
        self._tokenizer.post_processor = self._adds_tokens
        try:
            yield
        finally:
            self._tokenizer.post_processor = None

    def _added_around(self, text: str) -> tuple[list[int], list[int]]:
        """What the tokenizer adds before a text and behind it, where that is wanted."""
        if not self._adds_special_tokens:
            return [], []
        with self._added():
            encoding = self._tokenizer.encode(text, add_special_tokens=True)
        own = [n for n, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
        if not own:
            return encoding.ids, []
        return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]

    def decode(self, tokens: list[int]) -> str:
        """Their text, without special tokens.  Raises ConfigError for one beyond the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise ConfigError(f"token {token}: the vocabulary has 0 to {self.vocabulary - 1}")
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def encode_document(
        self, document: Chat | Completion, *, masks: bool
    ) -> tuple[list[int], list[bool] | None]:
        """A chat by its template, or two texts; with `masks`, which tokens count.

        Raises ConfigError for a key or a content that the template passes over, for what the
        assistant wrote where that cannot be told, and for the token that ends documents within one.
        """
        if isinstance(document, Chat) and self._template is None:
            raise ConfigError(f"{document.where}: is of messages, and the first row is of texts")
        if isinstance(document, Completion):
            tokens, counts = self._completion(document)
        else:
            with refusing_depth(document.where):
                tokens, counts = self._chat(document, masks=masks)
        if self.end_of_text in tokens[:-1]:
            raise ConfigError(
                f"{document.where}: has the token that ends documents, "
                f"{self._tokenizer.id_to_token(self.end_of_text)!r}, before its end",
                ('--end-of-text TOKEN ends documents with another one, "" with none',),
            )
        return tokens, counts if masks else None

    def ends_of_answers(self) -> list[int]:
        """The special token that the chat template writes behind an answer, if any.

        None for who encodes no chats.
        """
        end = None if self._template is None else self._template.end_of_answers()
        number = None if end is None else self._tokenizer.token_to_id(end)
        return [] if number is None else [int(number)]

    def encode_question(self, text: str, turns: Sequence[dict[str, str]] = ()) -> list[int]:
        """The tokens of a chat in which a user says `text` behind other turns, up to where the
        answer begins.
        """
        assert self._template is not None
        chat = Chat("the prompt", [*turns, {"role": "user", "content": text}])
        asked = self._template.render(chat, prompts=True)
        return self._encode_rendered(chat, asked, prompts=True)[0]

    def _completion(self, document: Completion) -> tuple[list[int], list[bool]]:
        text, begin = document.prompt + document.completion, len(document.prompt)
        before, behind = self._added_around(text)
        asked = [] if self._types_special_tokens else [Span(0, begin)]
        own, offsets = self._encode_typed(document.where, text, asked)
        ids = self._ended([*before, *own, *behind])
        counts = [False] * len(before) + [end > begin for _, end in offsets]
        return ids, counts + [True] * (len(ids) - len(counts))  # The ends of what is written.

    def _chat(self, chat: Chat, *, masks: bool) -> tuple[list[int], list[bool]]:
        assert self._template is not None
        chat, text = self._checked(chat)
        ids, offsets = self._encode_rendered(chat, text)
        tokens = self._ended(ids)
        if not masks and chat.silenced:
            raise ConfigError(
                f"{chat.where}: message {min(chat.silenced)} is not to count, by its key, and "
                "--train-on all counts all"
            )
        if not masks:
            return tokens, []
        changes = [0] * (len(text) + 1)
        has_end = True
        all_written = self._template.written(chat, text)
        for written in all_written:
            changes[written.span.begin] += 1
            changes[written.span.end] -= 1
            has_end = written.has_end or written.number + 1 < len(chat.messages)
        self.cut_contents += len({each.number for each in all_written if not each.is_whole})
        sums = [0, *accumulate(depth > 0 for depth in accumulate(changes))]
        counts = [sums[end] > sums[begin] for begin, end in offsets]
        if len(tokens) > len(counts):  # The end of what the assistant says is its own.
            counts.append(not has_end)
        return tokens, counts

    def _checked(self, chat: Chat) -> tuple[Chat, str]:
        """The chat as the template gets it, and its text."""
        template = self._template
        assert template is not None

        def render(messages: list[dict[str, Any]]) -> str | None:
            return template.or_none(replace(chat, messages=messages))

        chat = replace(chat, messages=plain_contents(chat.where, chat.messages, render))
        messages = arguments_for(chat.where, chat.messages, render)
        self.changed_calls += messages != chat.messages
        chat = replace(chat, messages=messages)
        text = template.render(chat)
        if chat.tools is not None:
            check_tools(chat.where, chat.tools, text, template.or_none(replace(chat, tools=None)))
        check_messages(chat.where, chat.messages, text, render)
        return chat, text

    def _encode_rendered(self, chat: Chat, text: str, *, prompts: bool = False) -> Encoded:
        spans = self._typed_by_others(chat, text, prompts=prompts)
        return self._encode_typed(chat.where, text, spans)

    def _typed_by_others(self, chat: Chat, text: str, *, prompts: bool) -> list[Span]:
        """The places of special tokens that somebody but the assistant wrote, in a chat's text."""
        assert self._template is not None
        if self._types_special_tokens:
            return []
        spans: list[Span] = []
        for name, marked in self._marked(chat):
            found = self._template.places_of_mark(marked, text, prompts=prompts)
            if found is None:
                raise _refusal_of_typed(f"{chat.where}: {name}")
            spans += found
        return spans

    def _marked(self, chat: Chat) -> Iterator[tuple[str, Chat]]:
        """The chat with a mark in place of each such text, and where that is."""
        for number, message in enumerate(chat.messages):
            if message["role"] == "assistant":
                continue
            for other in with_each(message, MARK, self._specials.is_in):
                messages = [*chat.messages[:number], other, *chat.messages[number + 1 :]]
                yield f"message {number}", replace(chat, messages=messages)
        for tools in with_each(chat.tools, MARK, self._specials.is_in):
            yield "'tools'", replace(chat, tools=tools)

    def _encode_typed(self, where: str, text: str, spans: Sequence[Span]) -> Encoded:
        """Special tokens that somebody but the assistant typed, in `spans`, are letters."""
        typed = self._specials.typed(text, spans)
        if not typed:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        self.typed_documents += 1
        encoded = self._specials.encode(text, typed)
        if encoded is None:
            raise _refusal_of_typed(where)
        return encoded


def _refusal_of_typed(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: a text in it has the letters of a special token, which this tokenizer or chat "
        "template cannot keep as letters",
        ("--special-tokens-in-texts takes them for the token",),
    )


def _can_start_threads() -> bool:
    """The package tokenizers, which wants one per core, panics where the system refuses them."""
    thread = threading.Thread(target=lambda: None)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


def _tokenizer_file(folder: Path) -> bytes:
    path = folder / "tokenizer.json"
    if not path.exists():
        more = (
            "; convert its tokenizer.model with transformers' "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            if (folder / "tokenizer.model").is_file()
            else "; it is the folder of a Hugging Face model or tokenizer"
        )
        raise ConfigError(f"tokenizer {str(folder)!r}: has no tokenizer.json{more}")
    return read_foreign(path)


def _transformers_tokenizer(folder: Path) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise ConfigError(
            "chat templates need the package transformers, which is not installed; "
            "install it with: pip install transformers"
        ) from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # Any kind: its class raises what it likes.
        raise ConfigError(f"tokenizer {str(folder)!r}: transformers refuses it: {error}") from None
    if not tokenizer.chat_template:
        raise ConfigError(f"tokenizer {str(folder)!r}: has no chat template")
    return tokenizer
