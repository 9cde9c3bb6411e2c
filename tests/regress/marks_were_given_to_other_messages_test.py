"""Of a template's marks, {% generation %}, the first was taken for the first answer's, and so on:
with two in one answer and none in another, "train": false left out the wrong text.  What is not
marked was left out in silence, and marks of a template for tools were looked for in any other.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.errors import ConfigError
from penstock.tokenize._chats import Chat
from penstock.tokenize._encoder import Encoder

BEGIN, END = "{% generation %}", "{% endgeneration %}"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' and not m.tool_calls %}"
    f"{BEGIN}{{{{ m.content[:1] }}}}{END}{{{{ m.content[1:2] }}}}"
    f"{BEGIN}{{{{ m.content[2:] + '<|im_end|>' }}}}{END}"
    "{% else %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
    "{% endfor %}{{ '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ASKED = {"role": "user", "content": "a"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "look", "arguments": {"at": "a"}}}],
}
TURNS = [
    *(ASKED, CALL, {"role": "tool", "content": "12"}, {"role": "assistant", "content": "a-wheel"}),
    *(ASKED, {"role": "assistant", "content": "r:iver"}),
]
FIRST, SECOND = ["a", "wheel<|im_end|>"], ["r", "iver<|im_end|>"]


def encoder_of(folder, template):
    family = chat_templates.FAMILIES["chatml"]
    chat_templates.make_tokenizer(folder, family, template)
    return Encoder(folder, end_of_text="", adds_special_tokens=False, is_for_chats=True)


def said(encoder, chat):
    tokens, counts = encoder.encode_document(chat, masks=True)
    parts, part = [], []
    for token, counts_too in zip([*tokens, None], [*counts, False], strict=True):
        if counts_too:
            part.append(token)
        elif part:
            parts.append(encoder.decode_whole(part))
            part = []
    return parts


@pytest.mark.parametrize(
    "left_out,expected",
    [([], FIRST + SECOND), ([3], SECOND), ([5], FIRST), ([1, 3], SECOND), ([1], FIRST + SECOND)],
)
def test_a_message_that_does_not_count_is_left_out(tmp_path, left_out, expected):
    encoder = encoder_of(tmp_path / "tok", TEMPLATE)
    assert said(encoder, Chat("c:1", TURNS, left_out=frozenset(left_out))) == expected
    # The call is not marked, and neither is the second letter of "a-wheel".
    assert encoder.cut_contents == len({1, 3, 5} - {*left_out})


def test_a_text_that_is_the_same_in_all_messages_is_its_neighbours(tmp_path):
    encoder = encoder_of(tmp_path / "last", TEMPLATE + BEGIN + "END" + END)
    for left_out, expected in (([], FIRST + SECOND), ([3], SECOND)):
        chat = Chat("c:1", TURNS, left_out=frozenset(left_out))
        assert said(encoder, chat) == [*expected, "END"]
    assert said(encoder, Chat("c:1", TURNS, left_out=frozenset([5]))) == FIRST
    each = TEMPLATE.replace("{% endfor %}{% if add", f"{BEGIN}END{END}{{% endfor %}}{{% if add")
    encoder = encoder_of(tmp_path / "each", each)
    assert said(encoder, Chat("c:1", TURNS)).count("END") == len(TURNS)
    with pytest.raises(ConfigError, match=r'c:1: "END" is the assistant\'s, .* cannot be told'):
        said(encoder, Chat("c:1", TURNS, left_out=frozenset([3])))


def test_marks_are_those_of_the_template_that_is_used(tmp_path):
    tools = [{"name": "look"}]
    with_tools = "{{ tools | tojson }}" + chat_templates.unmarked(TEMPLATE)
    encoder_of(tmp_path / "tok", TEMPLATE)
    path = tmp_path / "tok/tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["chat_template"] = [
        {"name": "default", "template": TEMPLATE},
        {"name": "tool_use", "template": with_tools},
    ]
    path.write_text(json.dumps(settings))
    encoder = Encoder(
        tmp_path / "tok", end_of_text="", adds_special_tokens=False, is_for_chats=True
    )
    assert said(encoder, Chat("c:1", TURNS)) == FIRST + SECOND
    call = '{"name": "look", "arguments": {"at": "a"}}<|im_end|>'
    answers = ["a-wheel<|im_end|>", "r:iver<|im_end|>"]
    assert said(encoder, Chat("c:1", TURNS, tools)) == [call, *answers]
