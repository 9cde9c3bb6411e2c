"""Arguments of calls that were JSON in a string, as OpenAI has them, were encoded once more by a
template that writes them as JSON.  Objects were Python to one that writes text.  Calls that were
JSON in a string were taken for letters.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.errors import ConfigError
from penstock.tokenize._chats import chat_of
from penstock.tokenize._encoder import Encoder

CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\\n' + c.function.name + ' ' }}{{ ARGUMENTS }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
AS_JSON = "c.function.arguments | tojson"
AS_GIVEN = "c.function.arguments if c.function.arguments is string else (" + AS_JSON + ")"
AS_TEXT = "c.function.arguments"
ADDED = "'' + c.function.arguments"
OF_ITEMS = "c.function.arguments.items() | list | length"
WRITTEN = '{"city":"Rome"}'
OBJECT = json.loads(WRITTEN)


def encoder_of(folder, arguments):
    template = CALLS.replace("ARGUMENTS", arguments)
    chat_templates.make_tokenizer(folder, chat_templates.FAMILIES["chatml"], template)
    return Encoder(folder, end_of_text="", adds_special_tokens=False, is_for_chats=True)


def said(encoder, calls):
    call = {"role": "assistant", "content": None, "tool_calls": calls}
    row = {"messages": [{"role": "user", "content": "a"}, call]}
    tokens, counts = encoder.encode_document(chat_of("c:1", row, "messages", ()), masks=True)
    counted = [token for token, counts_too in zip(tokens, counts, strict=True) if counts_too]
    return encoder.decode_whole(counted).removesuffix("<|im_end|>").removeprefix("\nlook ")


@pytest.mark.parametrize(
    "arguments,expected,changed",
    [
        (AS_JSON, '{"city": "Rome"}', "texts"),
        (AS_GIVEN, WRITTEN, "none"),
        (AS_TEXT, WRITTEN, "objects"),
        (ADDED, WRITTEN, "objects"),
        (OF_ITEMS, "1", "texts"),
    ],
)
def test_they_are_written_once(tmp_path, arguments, expected, changed):
    encoder = encoder_of(tmp_path / "tok", arguments)
    calls = [{"function": {"name": "look", "arguments": WRITTEN}}]
    assert said(encoder, calls) == expected
    assert said(encoder, json.dumps(calls)) == expected
    assert encoder.changed_calls == 2 * (changed == "texts")
    calls = [{"function": {"name": "look", "arguments": OBJECT}}]
    assert said(encoder, calls) == expected.replace(WRITTEN, '{"city": "Rome"}')
    assert encoder.changed_calls == {"texts": 2, "objects": 1, "none": 0}[changed]


def test_what_is_no_object_is_refused_where_objects_are_written(tmp_path):
    for given in ('{"city": "Ro', "[1]"):
        calls = [{"function": {"name": "look", "arguments": given}}]
        assert said(encoder_of(tmp_path / "given" / given, AS_GIVEN), calls) == given
        encoder = encoder_of(tmp_path / "json" / given, AS_JSON)
        with pytest.raises(ConfigError, match=r"'arguments' = .*: is no object of JSON"):
            said(encoder, calls)
    with pytest.raises(ConfigError, match="message 1: 'tool_calls' must be a list"):
        said(encoder_of(tmp_path / "list", AS_JSON), {"function": {}})
