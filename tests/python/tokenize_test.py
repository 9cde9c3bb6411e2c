"""`python -m penstock.tokenize`: what it writes, what it refuses, and what a kill leaves."""

import array
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")

END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Leaves out what the assistant said as soon as more follows.
FORGETFUL = TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'] if loop.last else '...' }}")
TEXTS = ["the river runs slow", "a wheel turns", "old stones: h\u00e9h\u00e9 \U0001f600"]


def make_tokenizer(folder, template=TEMPLATE, **settings):
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS,
        tokenizers.trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=[END, "<|user|>", "<|assistant|>", "<|stop|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "chat_template": template,
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    return make_tokenizer(tmp_path / "tok")


def words_of(*words):
    return [sys.executable, "-m", "penstock.tokenize", *map(str, words)]


def tokenize(folder, *words, code=0):
    result = subprocess.run(
        words_of("--tokenizer", "tok", *words), cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 0 else result.stderr


def tokens_of(path):
    note = json.loads(Path(f"{path}.json").read_text())
    tokens = array.array({2: "H", 4: "I"}[note["token_bytes"]], path.read_bytes())
    assert len(tokens) == note["tokens"]
    return note, list(tokens)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_texts_become_documents_that_end(tmp_path, tokenizer):
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / "empty.txt").write_text("")
    said = tokenize(tmp_path, "0.txt", "empty.txt", "1.txt", "2.txt", "-o", "c.bin")
    note, tokens = tokens_of(tmp_path / "c.bin")
    end = tokenizer.token_to_id(END)
    assert tokens == [each for text in TEXTS for each in [*tokenizer.encode(text).ids, end]]
    assert said.startswith(f"c.bin: {len(tokens)} tokens of 3 documents, 2 bytes each")
    assert note == {
        "penstock_corpus": 1,
        "token_bytes": 2,
        "tokens": len(tokens),
        "vocabulary": tokenizer.get_vocab_size(),
        "end_of_text": end,
        "tokenizer": "tok",
        "tokenizer_hash": note["tokenizer_hash"],
        "masked": False,
    }
    assert len(note["tokenizer_hash"]) == 64


def test_json_lines_and_other_ends(tmp_path, tokenizer):
    lines = [json.dumps({"id": 1, "body": text}) for text in TEXTS]
    (tmp_path / "t.jsonl").write_text("\n\n".join(lines) + "\n")
    tokenize(tmp_path, "t.jsonl", "--field", "body", "--end-of-text", "", "-o", "c.bin")
    note, tokens = tokens_of(tmp_path / "c.bin")
    assert tokens == [each for text in TEXTS for each in tokenizer.encode(text).ids]
    assert note["end_of_text"] is None


def test_chats_count_what_the_assistant_says(tmp_path, tokenizer):
    pytest.importorskip("transformers")
    says = ["hello the wheel", "old h\u00e9h\u00e9", "yes"]
    chats = [
        [("user", "a river?"), ("assistant", says[0]), ("user", "slow"), ("assistant", says[1])],
        [("user", "turns"), ("assistant", says[2]), ("user", "unanswered")],
    ]
    lines = [{"m": [{"role": r, "content": c} for r, c in chat]} for chat in chats]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tokenize(tmp_path, "c.jsonl", "--chat", "m", "-o", "c.bin")
    note, tokens = tokens_of(tmp_path / "c.bin")
    assert note["masked"]
    mask = (tmp_path / "c.bin.mask").read_bytes()
    assert len(mask) == (len(tokens) + 7) // 8
    counted = [t for i, t in enumerate(tokens) if mask[i // 8] >> i % 8 & 1]
    wanted = f"{says[0]}<|stop|>{says[1]}<|stop|>{says[2]}<|stop|>"
    assert tokenizer.decode(counted, skip_special_tokens=False) == wanted
    whole = tokenizer.decode(tokens, skip_special_tokens=False)
    assert whole.count(END) == 2
    assert whole.startswith("<|user|>a river?<|stop|><|assistant|>hello")
    tokenize(tmp_path, "c.jsonl", "--chat", "m", "--train-on", "all", "-o", "c.bin", "--force")
    assert not tokens_of(tmp_path / "c.bin")[0]["masked"]
    assert not (tmp_path / "c.bin.mask").exists()


def test_a_template_that_leaves_out_what_was_said_is_refused(tmp_path):
    pytest.importorskip("transformers")
    make_tokenizer(tmp_path / "tok", FORGETFUL)
    messages = [{"role": r, "content": "a"} for r in ("user", "assistant", "user")]
    (tmp_path / "c.jsonl").write_text(json.dumps({"m": messages}))
    error = tokenize(tmp_path, "c.jsonl", "--chat", "m", "-o", "c.bin", code=2)
    assert "c.jsonl:1: the chat template does not write the content of message 1" in error


def test_bad_input_is_named_and_leaves_nothing(tmp_path, tokenizer):
    (tmp_path / "good.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes(b"abc\xe9")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n{"body": 1}\n')
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "bare").mkdir()
    before = names(tmp_path)
    for words, message in [
        (["none.txt"], "text 'none.txt' does not exist"),
        (["tok"], "text 'tok' is a folder; name its files"),
        (["good.txt", "latin.txt"], "latin.txt: byte 3 is not UTF-8"),
        (["empty.txt"], "the texts hold no tokens"),
        (["lines.jsonl", "--field", "text"], "lines.jsonl:2: has no field 'text'; its fields: 'bo"),
        (["lines.jsonl", "--field", "body"], "lines.jsonl:1: has no field 'body'"),
        (["broken.jsonl", "--field", "text"], "broken.jsonl:2:9: is no JSON"),
        (["lines.jsonl", "--chat", "text"], "lines.jsonl:1: 'text' must be a list of messages"),
        (["good.txt", "--end-of-text", "<x>"], "has no end-of-text token '<x>'"),
        (["good.txt", "--tokenizer", "bare"], "tokenizer 'bare': has no tokenizer.json"),
    ]:
        assert message in tokenize(tmp_path, *words, "-o", "c.bin", code=2)
        assert names(tmp_path) == before
    assert "must end in .bin" in tokenize(tmp_path, "good.txt", "-o", "c", code=2)
    assert "its folder does not exist" in tokenize(tmp_path, "good.txt", "-o", "d/c.bin", code=2)


def test_a_corpus_is_replaced_only_by_force(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    tokenize(tmp_path, "a.txt", "-o", "c.bin")
    before = (tmp_path / "c.bin").read_bytes()
    error = tokenize(tmp_path, "b.txt", "-o", "c.bin", code=2)
    assert "output 'c.bin' is there already; --force replaces it" in error
    assert (tmp_path / "c.bin").read_bytes() == before
    tokenize(tmp_path, "b.txt", "-o", "c.bin", "--force")
    assert (tmp_path / "c.bin").read_bytes() != before


def written(pid, folder):
    """The bytes of files without a name that the process has in the folder."""
    total = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(link.readlink()).startswith(f"{folder}/"):
                total += link.stat().st_size
        except OSError:
            continue
    return total


def test_a_kill_in_mid_work_leaves_no_corpus(tmp_path, tokenizer):
    line = json.dumps({"text": " ".join(TEXTS) * 20}) + "\n"
    with (tmp_path / "t.jsonl").open("w") as file:
        for _ in range(40_000):
            file.write(line)
    before = names(tmp_path)
    command = words_of("--tokenizer", "tok", "t.jsonl", "--field", "text", "-o", "c.bin")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    input_bytes = (tmp_path / "t.jsonl").stat().st_size
    deadline = time.monotonic() + 60
    while written(process.pid, tmp_path) <= input_bytes:  # The input is open, too.
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    locks = {".penstock-lock", ".c.bin.penstock-lock"}  # Nobody's, until the next one has them.
    assert {*names(tmp_path)} - locks == {*before}
    (tmp_path / "t.jsonl").write_text(line)
    tokenize(tmp_path, "t.jsonl", "--field", "text", "-o", "c.bin")
    assert names(tmp_path) == sorted([*before, "c.bin", "c.bin.json"])


def test_penstock_trains_on_what_it_writes(tmp_path, tokenizer):
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
    (tmp_path / "t.jsonl").write_text('{"text": "%s"}\n' % (" ".join(TEXTS[:2]) * 99))
    tokenize(tmp_path, "t.jsonl", "--field", "text", "-o", "c.bin")
    vocabulary = tokenizer.get_vocab_size()
    configuration = {
        "train_batch_size": 2,
        "model": {"layers": 1, "hidden": 16, "heads": 2, "sequence_length": 8},
        "data": {"path": "c.bin"},
        "run": {"steps": 2, "eval_batches": 1, "directory": "run"},
    }
    for size, code, text in [
        (vocabulary, 0, "samples to train on"),
        (vocabulary - 1, 2, f'its tokenizer "tok" has a vocabulary of {vocabulary}'),
    ]:
        configuration["model"]["vocabulary"] = size
        (tmp_path / "c.json").write_text(json.dumps(configuration))
        result = subprocess.run(
            [program, "train", "c.json"], cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == code, result.stderr
        assert text in result.stderr


def text_helper(action, folder, given, code=0):
    words = [sys.executable, "-m", "penstock.tokenize.text", action, str(folder)]
    done = subprocess.run(words, input=given, capture_output=True, check=False)
    assert done.returncode == code, done.stderr.decode()
    return done


def test_a_text_becomes_tokens_and_back(tmp_path, tokenizer):
    folder = tmp_path / "tok"
    for text in [*TEXTS, "two\nlines\n", " \U0001f600", ""]:
        answer = text_helper("encode", folder, text.encode()).stdout
        tokens = [int(each) for each in answer.split()]
        assert tokens == tokenizer.encode(text).ids
        assert text_helper("decode", folder, answer).stdout.decode() == text
    special = tokenizer.token_to_id(END)
    assert text_helper("decode", folder, b"%d" % special).stdout == b""


def test_a_text_helper_says_what_is_wrong(tmp_path, tokenizer):
    size = tokenizer.get_vocab_size()
    error = text_helper("decode", tmp_path / "tok", b"%d" % size, code=2).stderr.decode()
    assert f"token {size}: the vocabulary has 0 to {size - 1}" in error
    assert b"has no tokenizer.json" in text_helper("encode", tmp_path, b"a", code=2).stderr
    assert b"Usage" in text_helper("code", tmp_path, b"a", code=2).stderr
