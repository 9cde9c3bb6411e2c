"""Chats in the forms that people have them in, special tokens that somebody typed, packing, and
what is shown of samples.
"""

import array
import contextlib
import io
import json
import random
import subprocess
import sys

import pytest

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import chat_templates  # noqa: E402
from chat_templates import FAMILIES, unmarked  # noqa: E402

from penstock.tokenize import main  # noqa: E402
from penstock.tokenize._samples import packed  # noqa: E402

USER, ANSWER = {"role": "user", "content": "the river"}, {"role": "assistant", "content": "a wheel"}
SAID = "<|im_start|>user\nthe river<|im_end|>\n<|im_start|>assistant\n[[a wheel<|im_end|>]]\n"
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
)
CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['tool_calls'] %}"
    "{{ m['tool_calls'][0]['function']['name'] }}{% else %}{{ m['content'] }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture
def chatml(tmp_path):
    return make(tmp_path, "chatml")


def make(folder, name, template=None):
    family = FAMILIES[name]
    chat_templates.make_tokenizer(folder / "tok", family, template or unmarked(family.template))
    return tokenizers.Tokenizer.from_file(str(folder / "tok/tokenizer.json"))


def run(folder, *words, code=0):
    """In this process: an import of transformers takes seconds."""
    said, error = io.StringIO(), io.StringIO()
    given = ["--tokenizer", "tok", "-o", "c.bin", "--force", *map(str, words)]
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(error),
    ):
        found = main(given)
    assert found == code, said.getvalue() + error.getvalue()
    return said.getvalue() if code == 0 else error.getvalue()


def corpus(folder):
    """Its note, tokens and which of them count."""
    note = json.loads((folder / "c.bin.json").read_text())
    tokens = list(array.array("H", (folder / "c.bin").read_bytes()))
    assert len(tokens) == note["tokens"]
    bits = (folder / "c.bin.mask").read_bytes()
    return note, tokens, [bool(bits[i // 8] >> i % 8 & 1) for i in range(len(tokens))]


def marked(folder, tokenizer):
    """The text of the corpus, with what counts between brackets."""
    _, tokens, counts = corpus(folder)
    text, i = "", 0
    while i < len(tokens):
        j = i
        while j < len(tokens) and counts[j] == counts[i]:
            j += 1
        part = tokenizer.decode(tokens[i:j], skip_special_tokens=False)
        text, i = text + (f"[[{part}]]" if counts[i] else part), j
    return text


def of_row(folder, tokenizer, row, field="messages", *words):
    (folder / "c.jsonl").write_text(json.dumps(row) + "\n")
    run(folder, "--chat", field, "c.jsonl", *words)
    return marked(folder, tokenizer).removesuffix("<|endoftext|>")


def refusal(folder, row, field="messages", *words):
    (folder / "c.jsonl").write_text(json.dumps(row) + "\n")
    return run(folder, "--chat", field, "c.jsonl", *words, code=2)


def test_forms_of_one_chat_are_one(tmp_path, chatml):
    turns = [{"from": "human", "value": "the river"}, {"from": "gpt", "value": "a wheel"}]
    asked = {"instruction": "the", "input": "river", "output": "a wheel"}
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "wheel"}]
    for field, row in [
        ("messages", {"messages": [USER, ANSWER], "id": 4}),
        ("conversations", {"conversations": turns}),
        ("instruction", {"instruction": "the river", "input": "", "output": "a wheel"}),
        ("prompt", {"prompt": [USER], "completion": [ANSWER]}),
        ("messages", {"messages": [USER, {**ANSWER, "content": parts}]}),
        ("chosen", {"chosen": [USER, ANSWER], "rejected": [USER]}),
    ]:
        words = ["--pass-over", "rejected"] if field == "chosen" else []
        assert of_row(tmp_path, chatml, row, field, *words) == SAID, row
    said = of_row(tmp_path, chatml, asked, "instruction")
    assert said == SAID.replace("the river", "the\n\nriver")
    for row in (
        {"m": turns, "system": "slow"},
        {"m": [{"from": "system", "value": "slow"}, *turns]},
    ):
        assert of_row(tmp_path, chatml, row, "m") == f"<|im_start|>system\nslow<|im_end|>\n{SAID}"


def test_the_note_says_how_answers_end(tmp_path, chatml):
    of_row(tmp_path, chatml, {"messages": [USER, ANSWER]}, "messages")
    assert corpus(tmp_path)[0]["answer_ends"] == [chatml.token_to_id("<|im_end|>")]


def test_answers_of_a_prompt_do_not_count(tmp_path, chatml):
    earlier = {"role": "assistant", "content": "12 more"}
    row = {"prompt": [USER, earlier, USER], "completion": [ANSWER], "system": "slow"}
    asked = "<|im_start|>user\nthe river<|im_end|>\n<|im_start|>assistant\n12 more<|im_end|>\n"
    said = of_row(tmp_path, chatml, row, "prompt")
    assert said == f"<|im_start|>system\nslow<|im_end|>\n{asked}{SAID}"


def test_texts_of_prompt_and_completion_have_no_template(tmp_path, chatml):
    row = {"prompt": "the river ", "completion": "runs slow"}
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    run(tmp_path, "--chat", "prompt", "c.jsonl")
    # A token that has letters of both belongs to the completion.
    assert marked(tmp_path, chatml).replace("[[ ", " [[") == "the river [[runs slow<|endoftext|>]]"


def test_rows_are_lines_or_an_array_over_any_lines(tmp_path, chatml):
    rows = [{"messages": [USER, ANSWER]}] * 3
    run_of = []
    for text in (
        "".join(json.dumps(row) + "\n" for row in rows),
        json.dumps(rows),
        "\ufeff  " + json.dumps(rows, indent=2) + "\n",
    ):
        (tmp_path / "c.json").write_text(text)
        assert "3 documents" in run(tmp_path, "--chat", "messages", "c.json")
        run_of.append(corpus(tmp_path))
    assert run_of[0] == run_of[1] == run_of[2]
    pretty = json.dumps([*rows, {"messages": []}], indent=2)
    line = 1 + pretty[: pretty.rindex("{")].count("\n")
    for text, error in [
        (pretty, f"c.json:{line}: 'messages' must be a list of messages"),
        (json.dumps(rows)[:-1], "c.json:1:"),
        (json.dumps(rows) + " 1", "c.json:1: has more behind its array"),
        ("[1]", "c.json:1: expected an object, found a number"),
        ("[{} {}]", "c.json:1:2: is no JSON|c.json:1: has no field"),
        ("{\n}", "an object over several lines is no JSON line: jq -c"),
    ]:
        (tmp_path / "c.json").write_text(text)
        said = run(tmp_path, "--chat", "messages", "c.json", code=2)
        assert any(each in said for each in error.split("|")), said


def test_keys_of_messages_say_which_count(tmp_path, chatml):
    other = {"role": "assistant", "content": "turns"}
    for key, no, yes in (("weight", 0, 1), ("train", False, True), ("training", False, True)):
        row = {"messages": [USER, {**ANSWER, key: no}, USER, {**other, key: yes}]}
        said = of_row(tmp_path, chatml, row)
        assert said == SAID.replace("[[", "").replace("]]", "") + SAID.replace("a wheel", "turns")
    for key, value, error in [
        ("weight", 0.5, "message 1: 'weight' = 0.5: must be 0 or 1"),
        ("train", "no", "message 1: 'train' = \"no\": must be true or false"),
        ("name", "x", "'name' = \"x\": the chat template does not use this key of message 1"),
    ]:
        assert error in refusal(tmp_path, {"messages": [USER, {**ANSWER, key: value}]})
    asks = {"messages": [{**USER, "train": True}, ANSWER]}
    assert "what the assistant writes counts, and nothing else" in refusal(tmp_path, asks)
    row = {"messages": [USER, {**ANSWER, "weight": 0}]}
    assert "no token of the chats counts" in refusal(tmp_path, row)
    said = refusal(tmp_path, row, "messages", "--train-on", "all")
    assert "message 1 is not to count, by its key, and --train-on all" in said
    assert of_row(tmp_path, chatml, {"messages": [{**USER, "weight": 0}, ANSWER]}) == SAID


def test_what_is_not_used_is_refused_by_name(tmp_path, chatml):
    for field, row, error in [
        ("messages", {"messages": [USER, ANSWER], "score": 3}, "'score' = 3: penstock.tokenize"),
        ("messages", {"messages": [USER, ANSWER], "tools": [{"a": 1}]}, "'tools' = [{\"a\": 1}]"),
        ("prompt", {"prompt": "a", "chosen": "b", "rejected": "c"}, "'chosen' and 'rejected' are"),
        ("chosen", {"chosen": [USER, ANSWER], "rejected": [USER]}, "a pair of preference"),
        ("prompt", {"prompt": "a", "completion": "b", "label": True}, "'label' = true"),
        ("messages", {"instruction": "a", "output": "b"}, "--chat instruction"),
        ("messages", {"conversations": [USER]}, "its messages are in --chat conversations"),
        ("instruction", {"instruction": "a"}, "has an 'instruction' and no 'output'"),
        ("messages", {"messages": [{"from": "narrator", "value": "a"}]}, "'from' = \"narrator\""),
        ("messages", {"messages": [{"role": "gpt", "content": "a"}]}, "know it as 'assistant'"),
        ("messages", {"messages": ["a"]}, "message 0 must be an object, found a string"),
        ("m", {"m": [{"role": "system", "content": "a"}, USER], "system": "b"}, "a message of the"),
    ]:
        said = refusal(tmp_path, row, field)
        assert said.startswith("penstock: c.jsonl:1: "), said
        assert error in said


def test_texts_that_nobody_expects_are_refused(tmp_path, chatml):
    for text, error in [
        ("Penstock0Mark", "what the assistant wrote in message 1 cannot be told"),
        ("\ud800", "a half of a character"),
    ]:
        said = refusal(tmp_path, {"messages": [USER, {**ANSWER, "content": text}]})
        assert error in said
    (tmp_path / "c.json").write_text(json.dumps([{"text": "a"}, {"text": "\ud800"}]))
    said = run(tmp_path, "--field", "text", "c.json", code=2)
    assert said.startswith("penstock: c.json:1: has a half of a character")


def test_tools_reach_a_template_that_takes_them(tmp_path):
    tokenizer = make(tmp_path, "chatml", TOOLS + unmarked(FAMILIES["chatml"].template))
    for tools in ([{"name": "look"}], '[{"name": "look"}]'):
        row = {"messages": [USER, ANSWER], "tools": tools}
        said = of_row(tmp_path, tokenizer, row)
        assert said == f'<|im_start|>system\n[{{"name": "look"}}]<|im_end|>\n{SAID}'


def test_a_call_of_a_tool_counts(tmp_path):
    tokenizer = make(tmp_path, "chatml", CALLS)
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]}
    row = {"messages": [USER, call, {"role": "tool", "content": "12"}, ANSWER]}
    assert of_row(tmp_path, tokenizer, row) == (
        SAID.replace("a wheel", "look").replace("look<|im_end|>]]", "look<|im_end|>]]")
        + "<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n[[a wheel<|im_end|>]]\n"
    )


def test_marks_of_a_template_are_followed(tmp_path):
    template = FAMILIES["chatml"].template.replace(
        "<|im_end|>' }}{% end", "<|im_end|>\\n' }}{% end"
    )
    tokenizer = make(tmp_path, "chatml", template.replace("{{ '\\n' }}", ""))
    said = of_row(tmp_path, tokenizer, {"messages": [USER, ANSWER]})
    assert said == SAID.replace("]]\n", "\n]]")


@pytest.mark.parametrize("name", FAMILIES)
def test_special_tokens_that_a_user_typed_are_letters(tmp_path, name):
    family = FAMILIES[name]
    tokenizer = make(tmp_path, name)
    last = family.specials[-1]
    typed = f"a {family.eos} of {last}{last}\n"
    numbers = [tokenizer.token_to_id(each) for each in (family.eos, last)]

    def found(text, *words):
        row = {"messages": [{**USER, "content": text}, ANSWER]}
        (tmp_path / "c.jsonl").write_text(json.dumps(row))
        run(tmp_path, "--chat", "messages", "c.jsonl", "--end-of-text", "", *words)
        _, tokens, counts = corpus(tmp_path)
        return [tokens.count(number) for number in numbers], sum(counts)

    assert found(typed) == found("a user")  # None more, and as many that count.
    (of_eos, of_last), count = found("a user")
    more = [typed.count(family.eos), typed.count(last)]
    taken = [of_eos + more[0], of_last + more[1]]
    assert found(typed, "--special-tokens-in-texts") == (taken, count)


def test_turns_that_end_with_the_end_of_texts_are_one_document(tmp_path):
    tokenizer = make(tmp_path, "llama2")
    rows = [{"messages": [USER, ANSWER, USER, ANSWER]}, {"messages": [USER, ANSWER]}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = run(tmp_path, "--chat", "messages", "c.jsonl")
    note, tokens, counts = corpus(tmp_path)
    end = tokenizer.token_to_id("<unk>")
    assert "documents end with '<unk>'" in said
    assert note["end_of_text"] == end
    assert [i for i, token in enumerate(tokens) if token == end] == [
        tokens.index(end),
        len(tokens) - 1,
    ]
    assert tokens[: tokens.index(end)].count(tokenizer.token_to_id("</s>")) == 2
    assert not any(counted for token, counted in zip(tokens, counts, strict=True) if token == end)


def rows_of_many_sizes(count, seed=5):
    draw = random.Random(seed)
    words = ["the", "river", "12 more", "a user"]
    text = lambda most: " ".join(draw.choices(words, k=draw.randint(1, most)))  # noqa: E731
    return [
        {"messages": [{**USER, "content": text(6)}, {**ANSWER, "content": text(24)}]}
        for _ in range(count)
    ]


def documents_in(tokens, counts, end):
    """Runs of tokens up to their end, without the ends that fill up a sample."""
    found, begin = [], 0
    for i, token in enumerate(tokens):
        if token == end:
            if i > begin:
                found.append((tokens[begin : i + 1], counts[begin : i + 1]))
            begin = i + 1
    return found


def test_packed_samples_hold_whole_documents(tmp_path, chatml):
    length = 90
    long = {"messages": [USER, {**ANSWER, "content": "the river " * 60}]}
    rows = [*rows_of_many_sizes(29), long, *rows_of_many_sizes(29, seed=6), long]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(tmp_path, "--chat", "messages", "c.jsonl")
    note, tokens, counts = corpus(tmp_path)
    end = note["end_of_text"]
    every = documents_in(tokens, counts, end)
    short = [each for each in every if len(each[0]) <= length]
    assert 0 < len(short) < len(every) == 60
    for packing in ("whole", "one"):
        said = run(
            tmp_path, "--chat", "messages", "c.jsonl", "--packing", packing, "--length", length
        )
        assert f"dropped for length: {60 - len(short)} documents; c.jsonl:" in said
        note, tokens, counts = corpus(tmp_path)
        assert note["sample_tokens"] == length
        samples = (len(tokens) - 1) // length
        assert len(tokens) == samples * length + 1  # The last sample's last target.
        assert f"{samples} samples of {length} tokens" in said
        found = []
        for first in range(0, samples * length, length):
            part = slice(first, first + length)
            found.append(documents_in(tokens[part], counts[part], end))
            assert tokens[first + length - 1] == end
        assert sorted(each for sample in found for each in sample) == sorted(short)
        if packing == "one":
            assert [each for sample in found for each in sample] == short
        else:
            assert samples < len(short) * 0.8


def test_too_long_documents_are_cut_where_that_is_asked(tmp_path, chatml):
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows_of_many_sizes(60))))
    words = ["--chat", "messages", "c.jsonl", "--packing", "one", "--length", 40]
    said = run(tmp_path, *words, "--too-long", "cut")
    cut = int(said.split("cut for length: ")[1].split()[0])
    silent = int(said.split("left out: ")[1].split()[0]) if "left out" in said else 0
    _, tokens, _ = corpus(tmp_path)
    assert cut > 0
    assert len(tokens) == 40 * (60 - silent) + 1
    mixed = [{"prompt": "a", "completion": "b"}, {"prompt": [USER], "completion": [ANSWER]}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, mixed)))
    said = run(tmp_path, "--chat", "prompt", "m.jsonl", code=2)
    assert "m.jsonl:2: is of messages, and the first row is of texts" in said
    assert "no document fits into 5 tokens" in run(tmp_path, *words[:-1], 5, code=2)
    for words, error in [
        (["--packing", "whole"], "--packing whole: --length is missing"),
        (["--packing", "whole", "--length", 1], "--length 1: must be at least 2"),
        (["--length", 8], "--length: is of --packing whole and --packing one"),
        (["--packing", "one", "--length", 8, "--end-of-text", ""], "documents have no end"),
        (["--show", "-1"], "--show -1: must be 0 or more"),
    ]:
        assert error in run(tmp_path, "--chat", "messages", "c.jsonl", *words, code=2)


def test_packing_is_best_fit_decreasing():
    assert packed([], 10) == []
    # 7 goes to 3, not into the room of 4; 6 to 4.
    assert packed([6, 7, 4, 3], 10) == [[0, 2], [1, 3]]
    assert packed([10, 1, 9, 5, 5], 10) == [[0], [1, 2], [3, 4]]
    draw = random.Random(3)
    for _ in range(50):
        room = draw.randint(1, 60)
        lengths = [draw.randint(1, room) for _ in range(draw.randint(1, 80))]
        samples = packed(lengths, room)
        assert sorted(n for sample in samples for n in sample) == list(range(len(lengths)))
        filled = sorted(sum(lengths[n] for n in sample) for sample in samples)
        assert filled[-1] <= room
        assert len(filled) == 1 or filled[0] + filled[1] > room  # Else one would have done.
        assert filled == sorted(best_fit(lengths, room))


def best_fit(lengths, room):
    """What samples hold: the definition, by looking at all of them each time."""
    filled = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, each in enumerate(filled) if each + length <= room]
        if fits:
            filled[max(fits, key=lambda i: filled[i])] += length
        else:
            filled.append(length)
    return filled


def test_samples_are_shown_with_what_counts(tmp_path, chatml):
    rows = [{"messages": [USER, ANSWER]}] * 3
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = run(tmp_path, "--chat", "messages", "c.jsonl", "--show", 2)
    _, tokens, counts = corpus(tmp_path)
    title = f"{len(tokens) // 3} tokens, {sum(counts) // 3} count"
    shown = "".join(f"--- {n}: {title}\n{SAID}<|endoftext|>\n" for n in (0, 1))
    assert said.startswith(f"{shown}c.bin: ")
    words = ["--packing", "whole", "--length", 100]
    said = run(tmp_path, "--chat", "messages", "c.jsonl", "--show", 1, *words)
    assert said.startswith(f"--- 0: 100 tokens, {sum(counts)} count\n")
    assert "times more)" in said


def test_samples_are_shown_in_colour_on_a_terminal(tmp_path, chatml):
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": [USER, ANSWER]}))
    command = f"{sys.executable} -m penstock.tokenize --tokenizer tok -o c.bin --show 1"
    done = subprocess.run(
        ["script", "-qec", f"{command} --chat messages c.jsonl", "/dev/null"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "\033[30;42ma wheel<|im_end|>\033[0m" in done.stdout


def test_a_template_that_writes_no_end_leaves_it_to_the_end_of_the_text(tmp_path):
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    tokenizer = make(tmp_path, "chatml", template)
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": [USER, ANSWER, USER, ANSWER]}))
    run(tmp_path, "--chat", "messages", "c.jsonl")
    said = "user: the river\nassistant:[[ a wheel]]\n"
    assert marked(tmp_path, tokenizer) == f"{said}{said}[[<|endoftext|>]]"


def test_a_question_ends_where_its_answer_begins(tmp_path, chatml):
    for text in ("the river", "an <|im_end|>"):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.tokenize.text", "chat", str(tmp_path / "tok")],
            input=json.dumps({"do": "say", "text": text}).encode(),
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        tokens = json.loads(done.stdout)["tokens"]
        asked = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        assert chatml.decode(tokens, skip_special_tokens=False) == asked
        assert tokens.count(chatml.token_to_id("<|im_end|>")) == 1


def test_trl_packs_as_full_samples(tmp_path):
    """`pip install trl` for this one."""
    pytest.importorskip("trl", reason="TRL is not installed: samples are not compared with its")
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    draw = random.Random(11)
    for room in (16, 50, 128):
        lengths = [draw.randint(1, room) for _ in range(400)]
        rows = Dataset.from_dict({"input_ids": [[n] * size for n, size in enumerate(lengths)]})
        theirs = pack_dataset(rows, room, strategy="bfd", map_kwargs={"batch_size": 1000})
        ours = packed(lengths, room)
        filled = sorted(sum(lengths[n] for n in sample) for sample in ours)
        assert filled == sorted(len(each) for each in theirs["input_ids"])
