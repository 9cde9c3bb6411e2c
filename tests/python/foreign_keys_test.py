"""Keys of other programs' files in penstock.tokenize: used, known to mean nothing, or refused."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

main = pytest.importorskip("penstock.tokenize").main

END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['tool_calls'] %}[{{ m['tool_calls'][0]['name'] }}]{% endif %}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = {"role": "user", "content": "a question"}
ANSWER = {"role": "assistant", "content": "an answer"}
CALL = {**ANSWER, "tool_calls": [{"name": "look"}]}


def make_tokenizer(folder, **settings):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        ["a question and an answer"],
        tokenizers.trainers.BpeTrainer(
            vocab_size=290,
            special_tokens=[END, "<|user|>", "<|assistant|>", "<|stop|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    write_settings(folder, **settings)


def write_settings(folder, **settings):
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": END}
    text = json.dumps({**values, "chat_template": TEMPLATE, **settings})
    (folder / "tokenizer_config.json").write_text(text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make_tokenizer(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tokenize(capsys, *words):
    """The exit code, and what is said."""
    code = main(["--tokenizer", ".", *words, "-o", "c.bin", "--force"])
    return code, "".join(capsys.readouterr())


def chat(folder, capsys, row, *words):
    (folder / "x.jsonl").write_text(json.dumps(row) + "\n")
    return tokenize(capsys, "--chat", "messages", "x.jsonl", *words)


def test_a_row_says_nothing_that_is_passed_over_in_silence(folder, capsys):
    plain = {"messages": [USER, ANSWER]}
    for harmless in ({}, {"id": 7, "source": "here"}, {"tools": None, "system": "", "meta": {}}):
        assert chat(folder, capsys, {**plain, **harmless})[0] == 0, harmless
    meaning = {"tools": [{"name": "look"}], "weight": 0, "train": False}
    meaning |= {"chosen": [ANSWER], "documents": ["a"], "score": 0.5, "anything": True}
    for key, value in meaning.items():
        code, said = chat(folder, capsys, {**plain, key: value})
        assert code == 2
        assert f"x.jsonl:1: '{key}' = " in said
        assert f"--pass-over {key}" in said
        assert chat(folder, capsys, {**plain, key: value}, "--pass-over", key)[0] == 0


def test_a_message_says_nothing_that_the_template_passes_over(folder, capsys):
    for used in (CALL, {**ANSWER, "weight": 1}, {**ANSWER, "train": True, "name": ""}):
        assert chat(folder, capsys, {"messages": [USER, used]})[0] == 0, used
    meaning = {"name": "Bo", "thinking": "hm", "tool_call_id": "7"}
    for key, value in meaning.items():
        row = {"messages": [USER, {**ANSWER, key: value}]}
        code, said = chat(folder, capsys, row)
        assert code == 2
        assert f"x.jsonl:1: '{key}' = " in said
        assert "message 1" in said
        assert chat(folder, capsys, row, "--pass-over", key)[0] == 0


def test_a_content_that_is_no_text_is_not_written_as_python_does(folder, capsys):
    parts = [{"type": "text", "text": "an answer"}]
    picture = [{"type": "image_url", "image_url": "x"}]
    for content in (picture, [*parts, *picture], 7, {"text": "x"}):
        code, said = chat(folder, capsys, {"messages": [USER, {**ANSWER, "content": content}]})
        assert code == 2, content
        assert "x.jsonl:1: the content of message 1 is " in said
    takes = TEMPLATE.replace(
        "{{ m['content'] }}",
        "{% if m.content is string %}{{ m.content }}{% elif m.content %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
    )
    write_settings(folder, chat_template=takes)
    for content in (None, parts):
        assert chat(folder, capsys, {"messages": [USER, {**CALL, "content": content}]})[0] == 0


def test_a_corpus_in_which_nothing_counts_is_refused(folder, capsys):
    code, said = chat(folder, capsys, {"messages": [USER, USER]})
    assert code == 2
    assert "no token of the chats counts" in said
    assert not (folder / "c.bin").exists()
    assert chat(folder, capsys, {"messages": [USER, USER]}, "--train-on", "all")[0] == 0


def test_what_transformers_puts_on_top_of_a_tokenizer_is_refused(folder, capsys):
    (folder / "text.txt").write_text("a question")
    harmless = {"model_max_length": 512, "padding_side": "left", "clean_up_tokenization_spaces": 1}
    harmless |= {"add_bos_token": False, "added_tokens_decoder": {"0": {"content": END}}}
    write_settings(folder, **harmless)
    assert tokenize(capsys, "text.txt", "--add-special-tokens")[0] == 0
    meaning = {"add_bos_token": True, "add_eos_token": True, "split_special_tokens": True}
    meaning |= {"added_tokens_decoder": {"400": {"content": "<|new|>"}}}
    for key, value in meaning.items():
        write_settings(folder, **{key: value})
        code, said = tokenize(capsys, "text.txt", "--add-special-tokens")
        assert code == 2
        assert f"tokenizer_config.json: {key} = " in said
