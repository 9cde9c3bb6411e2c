"""Of a template that ends each turn with the token that ends texts, every turn was a document of
its own: with data.attend_across_documents = false an answer did not see what it answers.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.tokenize._chats import Chat
from penstock.tokenize._encoder import Encoder


@pytest.mark.parametrize("name", ["llama2", "zephyr", "qwen2", "deepseek_r1"])
def test_the_end_of_documents_ends_no_turn(tmp_path, name):
    family = chat_templates.FAMILIES[name]
    chat_templates.make_tokenizer(
        tmp_path / "tok", family, chat_templates.unmarked(family.template)
    )
    encoder = Encoder(
        tmp_path / "tok", end_of_text=None, adds_special_tokens=False, is_for_chats=True
    )
    chat = [{"role": role, "content": "a river"} for role in ("user", "assistant") * 2]
    tokens, _ = encoder.encode_document(Chat("c:1", chat), masks=True)
    assert encoder.end_of_text == tokens[-1]
    assert encoder.end_of_text not in tokens[:-1]
    assert encoder.decode_whole(tokens).count(family.eos) >= 2
