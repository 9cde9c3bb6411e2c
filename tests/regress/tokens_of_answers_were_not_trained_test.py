"""Tokens of answers were left out of the loss: spaces, where the tokenizer moves the characters of
a token to the letters in it, and the end that the tokenizer adds to a completion.
"""

from __future__ import annotations

import pytest

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates  # noqa: E402

from penstock.tokenize._chats import Chat, Completion  # noqa: E402
from penstock.tokenize._encoder import Encoder  # noqa: E402

CODE = "a:\n\n        river\n"


def encoder_with(folder, processor, **options):
    family = chat_templates.FAMILIES["chatml"]
    chat_templates.make_tokenizer(folder, family, chat_templates.unmarked(family.template))
    path = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.post_processor = processor(tokenizer.token_to_id("<|im_end|>"))
    tokenizer.save(path)
    options = {"end_of_text": None, "adds_special_tokens": False, "is_for_chats": True, **options}
    return Encoder(folder, **options)


def counted_of(encoder, document):
    tokens, counts = encoder.encode_document(document, masks=True)
    counted = [token for token, counts_too in zip(tokens, counts, strict=True) if counts_too]
    return encoder.decode_whole(counted)


@pytest.mark.parametrize("asked", ["a", "a <|endoftext|>"])
def test_spaces_of_answers_count(tmp_path, asked):
    moves = tokenizers.processors.ByteLevel(trim_offsets=True)
    encoder = encoder_with(tmp_path / "tok", lambda _: moves, end_of_text="")
    # What a user typed is encoded in pieces.
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": CODE}]
    chat = Chat("c:1", turns)
    assert counted_of(encoder, chat) == f"{CODE}<|im_end|>"


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_the_end_that_the_tokenizer_adds_counts(tmp_path, end):
    def processor(number):
        return tokenizers.processors.TemplateProcessing(
            single="$A <|im_end|>", special_tokens=[("<|im_end|>", number)]
        )

    encoder = encoder_with(tmp_path / "tok", processor, adds_special_tokens=True, end_of_text=end)
    both = "<|im_end|>" if end == "<|im_end|>" else "<|im_end|><|endoftext|>"
    assert counted_of(encoder, Completion("c:1", "12", ":\n")) == f":\n{both}"
