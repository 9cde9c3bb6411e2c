"""Letters of special tokens were tokens in a tool's description, in the name of who speaks, and in
the prompt of a completion: they were letters in the contents of messages alone.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.errors import ConfigError
from penstock.tokenize._chats import Chat, Completion
from penstock.tokenize._encoder import Encoder

END = "<|im_end|>"
TEMPLATE = (
    "{% for t in tools or [] %}{{ (t | tojson) + '\\n' + t.name + '\\n' }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + (m.name or '') + '\\n' + m['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ASKED = {"role": "user", "content": "the river"}
ANSWER = {"role": "assistant", "content": "a wheel"}


def encoder_of(folder, **options):
    chat_templates.make_tokenizer(folder, chat_templates.FAMILIES["chatml"], TEMPLATE)
    return Encoder(folder, end_of_text="", adds_special_tokens=False, is_for_chats=True, **options)


@pytest.mark.parametrize(
    "chat",
    [
        Chat("c:1", [ASKED, ANSWER], [{"name": "a", "description": f'says "{END}" last'}]),
        Chat("c:1", [ASKED, ANSWER], [{"name": f"a{END}"}]),
        Chat("c:1", [ASKED, ANSWER], [{"name": "a", "parameters": {END: {"enum": ["a", END]}}}]),
        Chat("c:1", [{**ASKED, "name": END}, ANSWER]),
        Chat("c:1", [{"role": END, "content": f"a {END} of"}, ANSWER]),
    ],
)
def test_who_ever_typed_them(tmp_path, chat):
    encoder = encoder_of(tmp_path / "tok")
    text = encoder._template.render(chat)
    tokens, _ = encoder.encode_document(chat, masks=False)
    number = encoder._tokenizer.token_to_id(END)
    assert encoder.decode_whole(tokens) == text
    assert tokens.count(number) == 2  # As the template writes it.
    assert encoder.typed_documents == 1
    both = encoder_of(tmp_path / "both", types_special_tokens=True)
    tokens, _ = both.encode_document(chat, masks=False)
    assert tokens.count(number) == text.count(END)


def test_a_prompt_is_letters_and_a_completion_is_not(tmp_path):
    row = Completion("c:1", f"the {END} of ", f"a river{END}")
    number = 2
    for types in (False, True):
        encoder = encoder_of(tmp_path / str(types), types_special_tokens=types)
        tokens, counts = encoder.encode_document(row, masks=True)
        assert encoder.decode_whole(tokens) == row.prompt + row.completion
        assert tokens.count(number) == 1 + types
        assert tokens[-1] == number and counts[-1]


def test_what_cannot_be_found_is_refused(tmp_path):
    template = TEMPLATE.replace("m.name or ''", "m.name | upper")
    chat_templates.make_tokenizer(tmp_path / "tok", chat_templates.FAMILIES["chatml"], template)
    encoder = Encoder(
        tmp_path / "tok", end_of_text="", adds_special_tokens=False, is_for_chats=True
    )
    with pytest.raises(ConfigError, match="message 0: a text in it has the letters"):
        encoder.encode_document(Chat("c:1", [{**ASKED, "name": END}, ANSWER]), masks=False)
