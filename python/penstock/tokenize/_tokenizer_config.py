"""tokenizer_config.json: the token that ends a text, and what it says beyond tokenizer.json.

tokenizer.json alone makes tokens of texts here.  Most keys beside it say the same once more, or are
of padding, cutting and decoding, which penstock.tokenize does not do.  Those that transformers
applies on top of it are compared with it, so that no token differs in silence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock._foreign_files import read_foreign
from penstock.errors import ConfigError

NAME = "tokenizer_config.json"


class TokenizerConfig:
    """What a folder's file says; without the file nothing.  Raises ConfigError for what is no
    object.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._values: dict[str, Any] = {}
        if not self._path.exists():
            return
        try:
            self._values = json.loads(read_foreign(self._path).decode("utf-8"))
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self._path}: is no JSON: {error}") from None
        if not isinstance(self._values, dict):
            raise ConfigError(f"{self._path}: is no object of JSON")

    def token(self, name: str) -> str | None:
        """The text of "eos_token" and the like; None where there is none."""
        token = self._values.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None

    def check(self, tokenizer: Any, *, adds_special_tokens: bool) -> None:
        """Raises ConfigError for a key by which transformers makes other tokens than `tokenizer`.

        tokenizer: of tokenizer.json alone.
        """
        if self._values.get("split_special_tokens"):
            self._refuse("split_special_tokens", "special tokens in a text are one token here")
        self._check_added_tokens(tokenizer)
        if adds_special_tokens:
            added = tokenizer.encode("", add_special_tokens=True).ids
            self._check_added("add_bos_token", "bos_token", added[:1], tokenizer)
            self._check_added("add_eos_token", "eos_token", added[-1:], tokenizer)

    def _check_added_tokens(self, tokenizer: Any) -> None:
        tokens = self._values.get("added_tokens_decoder")
        for number, token in (tokens if isinstance(tokens, dict) else {}).items():
            text = token.get("content") if isinstance(token, dict) else None
            if isinstance(text, str) and str(tokenizer.token_to_id(text)) != number:
                self._refuse("added_tokens_decoder", f"tokenizer.json lacks {text!r} as {number}")

    def _check_added(self, key: str, name: str, there: list[int], tokenizer: Any) -> None:
        wanted, token = self._values.get(key), self.token(name)
        if not isinstance(wanted, bool) or token is None:
            return
        if wanted != (there == [tokenizer.token_to_id(token)]):
            does = "adds" if there else "does not add"
            self._refuse(key, f"tokenizer.json {does} {token!r}")

    def _refuse(self, key: str, why: str) -> None:
        value = json.dumps(self._values[key])
        raise ConfigError(
            f"{self._path}: {key} = {value[:40]}: {why}",
            ("save the tokenizer again: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",),
        )
