"""What stands before an answer counted in the loss, such as "<|im_start|>assistant": of a template
that knows no generation prompt, and of a chat that begins with the assistant.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.tokenize._chats import Chat
from penstock.tokenize._encoder import Encoder

PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'"
    " }}{% endfor %}"
)
PROMPTS = PLAIN + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


@pytest.mark.parametrize("template", [PLAIN, PROMPTS])
def test_what_stands_before_an_answer_does_not_count(tmp_path, template):
    chat_templates.make_tokenizer(tmp_path / "tok", chat_templates.FAMILIES["chatml"], template)
    encoder = Encoder(
        tmp_path / "tok", end_of_text=None, adds_special_tokens=False, is_for_chats=True
    )
    answer, question = ({"role": role, "content": "a river"} for role in ("assistant", "user"))
    tokens, counts = encoder.encode_document(Chat("c:1", [answer, question, answer]), masks=True)
    counted = [token for token, counts_too in zip(tokens, counts, strict=True) if counts_too]
    assert encoder.decode_whole(counted) == "a river<|im_end|>" * 2
