"""Hugging Face's tokenizer of a folder: texts and chats to token ids."""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from penstock._foreign_files import read_foreign
from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import check_contents, check_messages
from penstock.tokenize._tokenizer_config import TokenizerConfig


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
        passed_over: Collection[str] = (),
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
        self._passed_over = frozenset(passed_over)
        self._adds_special_tokens = adds_special_tokens
        self._chats = _transformers_tokenizer(folder) if is_for_chats else None
        self.name = folder.resolve().name
        self.hash = hashlib.sha256(content).hexdigest()
        self.vocabulary = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.token_bytes = 2 if self.vocabulary <= 1 << 16 else 4
        self.end_of_text = self._id_of_end(folder, config, end_of_text)

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

    def _ended(self, tokens: list[int]) -> list[int]:
        if not tokens or self.end_of_text is None or tokens[-1] == self.end_of_text:
            return tokens
        return [*tokens, self.end_of_text]

    def encode(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text, with its end-of-text token; on all cores, where threads can be
        started.

        Nothing for an empty text.
        """
        encodings = self._tokenizer.encode_batch_fast(
            texts, add_special_tokens=self._adds_special_tokens
        )
        for text, encoding in zip(texts, encodings, strict=True):
            yield self._ended(encoding.ids) if text else []

    def decode(self, tokens: list[int]) -> str:
        """Their text, without special tokens.  Raises ConfigError for one beyond the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise ConfigError(f"token {token}: the vocabulary has 0 to {self.vocabulary - 1}")
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def encode_chat(
        self, where: str, messages: list[dict[str, Any]], *, masks: bool
    ) -> tuple[list[int], list[bool] | None]:
        """A chat by its template, and, with `masks`, which of its tokens the assistant writes.

        Raises ConfigError for a key or a content that the template passes over.
        """

        def render(these: list[dict[str, Any]]) -> str:
            return self._render(where, these)

        messages = check_messages(where, messages, render, self._passed_over)
        check_contents(where, messages, render)
        text = self._render(where, messages)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        tokens = self._ended(encoding.ids)
        if not masks:
            return tokens, None
        written = self._written_by_assistant(where, messages, text)
        counts = [written[begin] if begin < end else False for begin, end in encoding.offsets]
        if len(tokens) > len(counts):  # The end of what the assistant says is its own.
            counts.append(messages[-1]["role"] == "assistant")
        return tokens, counts

    def _written_by_assistant(
        self, where: str, messages: list[dict[str, Any]], text: str
    ) -> list[bool]:
        """True of characters from behind the prompt for an answer to the end of that message."""
        changes = [0] * (len(text) + 1)
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._render(where, messages[:i], prompts=True) if i else ""
            answered = self._render(where, messages[: i + 1])
            if not (text.startswith(answered) and answered.startswith(prompt)):
                raise ConfigError(
                    f"{where}: the chat template writes message {i} in another way when more "
                    "follow it, so what the assistant wrote cannot be told; use --train-on all"
                )
            changes[len(prompt)] += 1
            changes[len(answered)] -= 1
        return [depth > 0 for depth in accumulate(changes)]

    def _render(self, where: str, messages: list[dict[str, Any]], *, prompts: bool = False) -> str:
        assert self._chats is not None
        try:
            text = self._chats.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompts
            )
        except Exception as error:  # Templates raise what they like.
            raise ConfigError(f"{where}: the chat template refuses it: {error}") from None
        return str(text)


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
