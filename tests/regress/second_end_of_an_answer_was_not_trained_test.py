"""Of two special tokens that end each answer, the first counted, and the one that ends the turn did
not.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.tokenize._chats import Chat
from penstock.tokenize._encoder import Encoder

TEMPLATE = (
    "{% for m in messages %}{{ '<|turn|>' + m.role + '\\n' + m.content }}"
    "{{ '<|said|>' if m.role == 'assistant' else '' }}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% else %}{{ 'TAIL' }}{% endif %}"
)


@pytest.mark.parametrize("tail", ["", "<|endoftext|>", "\\n<|endoftext|>"])
def test_all_tokens_that_end_answers_count(tmp_path, tail):
    template = TEMPLATE.replace("TAIL", tail)
    specials = ("<|endoftext|>", "<|turn|>", "<|said|>", "<|end|>")
    family = chat_templates.Family(template, specials, eos="<|endoftext|>")
    chat_templates.make_tokenizer(tmp_path / "tok", family, template)
    encoder = Encoder(
        tmp_path / "tok", end_of_text="", adds_special_tokens=False, is_for_chats=True
    )
    chat = Chat("c:1", [{"role": role, "content": "a"} for role in ("user", "assistant") * 2])
    tokens, counts = encoder.encode_document(chat, masks=True)
    counted = [token for token, counts_too in zip(tokens, counts, strict=True) if counts_too]
    assert encoder.decode_whole(counted) == "a<|said|><|end|>" * 2
