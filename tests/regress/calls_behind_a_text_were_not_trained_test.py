"""A call of a tool behind a text did not count where a special token stands between them: that was
taken for the end of the message.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates

from penstock.errors import ConfigError
from penstock.tokenize._chats import Chat
from penstock.tokenize._encoder import Encoder

HARMONY = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.content %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant to=' + m.tool_calls[0].function.name + '<|channel|>commentary json"
    "<|message|>' + (m.tool_calls[0].function.arguments | tojson) + '<|call|>' }}"
    "{% elif m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last "
    "and not add_generation_prompt else '<|end|>') }}{% else %}"
    "{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<|tool_call|>' + c.function.name + ' ' + "
    "(c.function.arguments | tojson) + 'MORE' }}{% endfor %}{{ 'END' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% else %}{{ 'TAIL' }}{% endif %}"
)
SPECIALS = (
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"),
    "<|tool_call|>",
)
CALL = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [{"function": {"name": "get", "arguments": {"city": "Rome"}}}],
}
ASKED = {"role": "user", "content": "a river"}
REST = [{"role": "tool", "content": "12"}, {"role": "assistant", "content": "It runs."}]
GET = 'get {"city": "Rome"}'


def counted_of(folder, template, messages):
    chatml = chat_templates.FAMILIES["chatml"]
    family = chat_templates.Family(template, (*chatml.specials, *SPECIALS), eos="<|endoftext|>")
    chat_templates.make_tokenizer(folder, family, template)
    encoder = Encoder(folder, end_of_text="", adds_special_tokens=False, is_for_chats=True)
    tokens, counts = encoder.encode_document(Chat("c:1", messages), masks=True)
    said, rest = [], []
    for token, counts_too in zip([*tokens, None], [*counts, False], strict=True):
        if counts_too:
            rest.append(token)
        elif rest:
            said.append(encoder.decode_whole(rest))
            rest = []
    return said


def test_a_call_of_several_parts_counts_to_its_end(tmp_path):
    call = ' to=get<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>'
    channel = "<|channel|>analysis<|message|>"
    texts = [
        ("Let me look.", f"{channel}Let me look.<|end|><|start|>assistant{call}"),
        ("", call),
    ]
    final = "<|channel|>final<|message|>It runs."
    for number, (content, expected) in enumerate(texts):
        messages = [ASKED, {**CALL, "content": content}]
        folder = tmp_path / str(number)
        assert counted_of(folder / "last", HARMONY, messages) == [expected]
        assert counted_of(folder / "first", HARMONY, [*messages, *REST]) == [
            expected,
            f"{final}<|return|>",
        ]
        messages += [*REST, ASKED, REST[-1]]
        assert counted_of(folder / "middle", HARMONY, messages) == [
            expected,
            f"{final}<|end|>",
            f"{final}<|return|>",
        ]


def test_a_call_counts_where_its_text_is_left_out_because_more_follows(tmp_path):
    template = HARMONY.replace("{% if m.content %}", "{% if m.content and loop.last %}")
    said = counted_of(tmp_path / "tok", template, [ASKED, CALL, *REST])
    assert said[0] == ' to=get<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>'


@pytest.mark.parametrize(
    "more,end,tail,counted",
    [
        ("", "<|im_end|>\\n", "", "<|im_end|>"),
        ("<|tool_call|>\\n", "<|im_end|>\\n", "<|endoftext|>", "<|tool_call|>\n<|im_end|>"),
        ("", "", "", ""),
    ],
)
def test_a_call_behind_a_special_token_counts(tmp_path, more, end, tail, counted):
    template = CHATML.replace("MORE", more).replace("END", end).replace("TAIL", tail)
    expected = f"Let me look.<|tool_call|>{GET}{counted}"
    for folder, rest in (("last", []), ("first", REST)):
        said = counted_of(tmp_path / folder, template, [ASKED, CALL, *rest])
        assert said[0] == expected
        assert said[1:] == (["It runs." + "<|im_end|>" * bool(end)] if rest else [])


def test_a_call_that_is_written_otherwise_where_more_follows_is_refused(tmp_path):
    more = CHATML.replace("'MORE'", "('a' if m == messages[-1] else 'b')")
    template = more.replace("END", "<|im_end|>").replace("TAIL", "")
    with pytest.raises(ConfigError, match="what the assistant wrote in message 1 cannot be told"):
        counted_of(tmp_path / "tok", template, [ASKED, CALL, *REST])
