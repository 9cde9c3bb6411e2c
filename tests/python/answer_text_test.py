"""The text of tokens that come one by one: whole characters only, and in the end all of it."""

import json
import random
import subprocess
import sys

import pytest

from penstock.tokenize._answer_text import AnswerText

tokenizers = pytest.importorskip("tokenizers")

TEXT = "old stones: h\u00e9h\u00e9 \U0001f600\U0001f468\u200d\U0001f469 \u6cb3\u6d41 ends.\n"


def byte_level():
    """Every byte is a token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: number for number, each in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def byte_fallback():
    """As Llama 2's: letters, and a token for each byte of what is none."""
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    for letter in "\u2581abcdefghijklmnopqrstuvwxyz:.":
        vocabulary[letter] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    decoders = tokenizers.decoders
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def streamed(tokenizer, tokens, steps=lambda: 1):
    text, parts, at = AnswerText(tokenizer.decode), [], 0
    while at < len(tokens):
        count = steps()
        parts.append(text.add(tokens[at : at + count]))
        at += count
    return [*parts, text.finish()], text.whole()


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_characters_are_told_whole_and_at_once(make):
    tokenizer = make()
    tokens = tokenizer.encode(TEXT * 12).ids  # Longer than what is decoded anew.
    parts, whole = streamed(tokenizer, tokens)
    assert "".join(parts) == whole == tokenizer.decode(tokens) == TEXT * 12
    assert not any("\ufffd" in part for part in parts)
    assert all(len(part) <= 1 for part in parts)  # Each as soon as its last byte is there.
    assert parts[-1] == ""


def test_any_tokens_in_any_portions_give_the_text_of_all():
    tokenizer, draw = byte_level(), random.Random(7)
    for _ in range(300):
        tokens = [draw.randrange(256) for _ in range(draw.randrange(200))]
        parts, whole = streamed(tokenizer, tokens, lambda: draw.randint(1, 9))
        assert "".join(parts) == whole == tokenizer.decode(tokens)


def test_bytes_of_a_character_that_ends_nowhere_are_told_in_the_end():
    for tokenizer in (byte_level(), byte_fallback()):
        tokens = tokenizer.encode("a\U0001f600").ids[:-1]
        parts, _ = streamed(tokenizer, tokens)
        assert "".join(parts[:-1]) == "a"
        assert set(parts[-1]) == {"\ufffd"}


TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("transformers")
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>", "<|stop|>", "<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path, tokenizer


def talk(folder, *questions, action="chat"):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.tokenize.text", action, str(folder)],
        input="".join(json.dumps(each) + "\n" for each in questions),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_chat_keeps_its_turns_until_it_is_reset(folder):
    path, tokenizer = folder
    answer = tokenizer.encode("b\u00e9<|stop|>").ids
    ends, first, *heard, rest, second, _, anew = talk(
        path,
        {"do": "ends"},
        {"do": "say", "text": "a"},
        *({"do": "hear", "tokens": [each]} for each in answer),
        {"do": "end"},
        {"do": "say", "text": "c"},
        {"do": "reset"},
        {"do": "say", "text": "c"},
    )
    assert ends["tokens"] == [tokenizer.token_to_id("<|stop|>")]
    assert "".join(each["text"] for each in heard) + rest["text"] == "b\u00e9"

    def asked(given):
        return tokenizer.decode(given["tokens"], skip_special_tokens=False)

    assert asked(first) == "<|user|>a<|stop|><|assistant|>"
    turns = "<|user|>a<|stop|><|assistant|>b\u00e9<|stop|>"
    assert asked(second) == f"{turns}<|user|>c<|stop|><|assistant|>"
    assert asked(anew) == "<|user|>c<|stop|><|assistant|>"


def test_a_text_to_go_on_from_is_told_ahead(folder):
    path, tokenizer = folder
    tokens = tokenizer.encode(" two \U0001f600").ids
    begin, heard = talk(
        path,
        {"do": "prompt", "text": "one"},
        {"do": "hear", "tokens": tokens},
        action="talk",
    )
    assert begin == {"tokens": tokenizer.encode("one").ids, "text": "one"}
    assert heard == {"text": " two \U0001f600"}


def test_what_is_refused_changes_nothing(folder):
    path, tokenizer = folder
    wrong, first = talk(path, {"do": "hear", "tokens": [9999]}, {"do": "say", "text": "a"})
    assert "token 9999: the vocabulary has 0 to" in wrong["error"]
    assert tokenizer.decode(first["tokens"], skip_special_tokens=True) == "a"
