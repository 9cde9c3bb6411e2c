"""The token that begins the next turn counted as the end of an answer, of a template that ends the
last answer alone.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.tokenize._chats import Chat
from penstock.tokenize._encoder import Encoder

TEMPLATE = (
    "{{ 'START' }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
    "{% if m.role == 'assistant' %}{{ ('<|endoftext|>' if loop.last else 'OTHER') }}"
    "{% else %}{{ 'ASKED' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")


@pytest.mark.parametrize(
    "start,asked,other,end",
    [
        ("", "", "", ""),
        ("<|system|>", "", "", ""),
        ("<|system|>a<|end|>", "<|end|>", "<|end|>", "<|end|>"),
        ("", "", "<|end|>", "<|end|>"),
        ("", "<|end|>", "", ""),
    ],
)
def test_a_token_that_leads_to_the_next_turn_ends_no_answer(tmp_path, start, asked, other, end):
    template = TEMPLATE.replace("START", start).replace("ASKED", asked).replace("OTHER", other)
    family = chat_templates.Family(template, SPECIALS, eos="<|endoftext|>")
    chat_templates.make_tokenizer(tmp_path / "tok", family, template)
    encoder = Encoder(
        tmp_path / "tok", end_of_text="", adds_special_tokens=False, is_for_chats=True
    )
    for roles in (("user", "assistant") * 2, ("user", "assistant", "assistant")):
        chat = Chat("c:1", [{"role": role, "content": "a"} for role in roles])
        tokens, counts = encoder.encode_document(chat, masks=True)
        counted = [token for token, counts_too in zip(tokens, counts, strict=True) if counts_too]
        assert encoder.decode_whole(counted) == f"a{end}a<|endoftext|>", roles
