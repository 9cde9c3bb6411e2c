"""`penstock generate` with texts: streams, ends where a chat's template says, and chats.

Takes over 10 s: each talk starts Python and ranks anew.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import model_folders  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = Path(os.environ.get("PENSTOCK_BUILD", ROOT / "build")) / "bin" / "penstock"
PATIENCE = 120.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMED = ["<|user|>", "<|assistant|>", "<|sep|>", "<|end|>"]
SPARE = [f"<|s{number}|>" for number in range(10)]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}ENDS{% else %}<|sep|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Model:
    """A tiny Llama whose tokens are letters."""

    def __init__(self, folder):
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.BPE(
                vocab={each: number for number, each in enumerate(LETTERS)}, merges=[]
            )
        )
        tokenizer.decoder = tokenizers.decoders.Fuse()
        tokenizer.add_special_tokens([*NAMED, *SPARE])
        self.tokenizer = tokenizer
        self.folder = model_folders.write_llama(
            folder,
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            tie_word_embeddings=False,
            eos_token_id=None,
        )
        model_folders.write_random_weights(self.folder)
        tokenizer.save(str(self.folder / "tokenizer.json"))
        self.end_turns_with("<|end|>")

    def end_turns_with(self, end):
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|end|>",
            "chat_template": TEMPLATE.replace("ENDS", end),
        }
        (self.folder / "tokenizer_config.json").write_text(json.dumps(settings))

    def words(self, *words):
        return [str(each) for each in (PENSTOCK, "generate", self.folder, *words)]

    def run(self, *words, given=""):
        done = subprocess.run(
            self.words(*words), input=given, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tokens(self, *words):
        return json.loads(self.run("--json", *words))["tokens"]

    def behind(self, text, *words):
        """The text behind one whose special tokens are some, by tokens alone."""
        ids = ",".join(map(str, self.tokenizer.encode(text).ids))
        return self.tokenizer.decode(self.tokens("--tokens", ids, *words))


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path / "model")


@pytest.fixture(autouse=True)
def _python(monkeypatch):
    monkeypatch.setenv("PENSTOCK_PYTHON", sys.executable)


class Terminal:
    """A program whose terminal is read and typed at."""

    def __init__(self, words):
        self.side, other = pty.openpty()
        settings = termios.tcgetattr(other)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(other, termios.TCSANOW, settings)

        def begin():
            os.setsid()
            fcntl.ioctl(other, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(
            words, stdin=other, stdout=other, stderr=other, preexec_fn=begin
        )
        os.close(other)
        self.text = ""

    def type(self, text):
        os.write(self.side, text.encode())

    def until(self, pattern):
        """What comes up to the first match, and that."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.text)) is None:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.side], [], [], left)
            assert ready, f"{pattern!r} did not come: {self.text!r}"
            try:
                self.text += os.read(self.side, 65536).decode().replace("\r", "")
            except OSError:
                raise AssertionError(f"{pattern!r} did not come: {self.text!r}") from None
        come, self.text = self.text[: found.end()], self.text[found.end() :]
        return come

    def end(self):
        code = self.process.wait(PATIENCE)
        os.close(self.side)
        return code


def test_a_text_streams_and_is_all_of_it(model):
    words = ("--prompt", "abc", "--max-tokens", 3000)
    process = subprocess.Popen(model.words(*words), stdout=subprocess.PIPE)
    text = ""
    while len(text) < 10:
        new = os.read(process.stdout.fileno(), 1 << 16).decode()
        assert new, f"the text ended: {text!r}"
        text += new
    assert len(text) < 2000  # 3000 tokens are not there yet.
    text += process.stdout.read().decode()
    assert process.wait(PATIENCE) == 0
    assert text == "abc" + model.tokenizer.decode(model.tokens(*words)) + "\n"


def test_an_answer_ends_with_any_end_of_the_folder_or_of_the_template(model):
    words = ("--chat", "--prompt", "hello", "--max-tokens", 60)
    whole = model.tokens(*words)
    assert len(whole) == 60
    ends = (model.folder / "generation_config.json", model.folder / "tokenizer_config.json")
    at = next(n for n, token in enumerate(whole) if n > 3 and token not in whole[:n])
    ends[0].write_text(json.dumps({"eos_token_id": [whole[at], 2, 10**6]}))
    first = min(whole.index(each) for each in (whole[at], 2) if each in whole)
    assert model.tokens(*words) == whole[: first + 1]
    ends[0].unlink()
    ids = {model.tokenizer.token_to_id(each): each for each in SPARE}
    end = next(token for token in whole if token in ids)
    model.end_turns_with(ids[end])
    assert model.tokens(*words) == whole[: whole.index(end) + 1]
    assert model.run(*words) == model.tokenizer.decode(whole[: whole.index(end)]) + "\n"


def test_turns_are_kept_until_they_are_reset(model):
    words = ("--interactive", "--max-tokens", 20)
    asked = "hello\n\nmore\n/reset\nhello\n/what\nmore"
    answers = model.run(*words, given=asked).split("\n")
    first = model.behind("<|user|>hello<|sep|><|assistant|>", "--max-tokens", 20)
    turn = f"<|user|>hello<|sep|><|assistant|>{first}<|end|>"
    second = model.behind(f"{turn}<|user|>more<|sep|><|assistant|>", "--max-tokens", 20)
    assert first != second
    assert answers == [first, second, first, second, ""]
    for layout in (("--pipe", 2), ("--set", "mesh.tensor=2")):
        assert model.run(*words, *layout, given=asked).split("\n") == answers


# Letters without end: nothing ends an answer, and tokens are drawn.
ENDLESS = ("--interactive", "--temperature", 1, "--max-tokens", 1 << 20)
ANSWER = "[a-z]{20}"  # No message has such a word.


def test_a_chat_at_a_terminal(model):
    model.end_turns_with("")
    terminal = Terminal(model.words(*ENDLESS, "--pipe", 2))
    assert "/reset forgets the chat" in terminal.until("> ")
    terminal.type("hello\n")
    terminal.until(ANSWER)
    terminal.type("\x03")
    terminal.until("\n> ")
    assert terminal.process.poll() is None
    terminal.type("\x03")
    assert "/quit ends the chat" in terminal.until("> ")
    terminal.type("/help\n")
    assert "/help is no command" in terminal.until("> ")
    terminal.type("more\n")
    terminal.until(ANSWER)
    terminal.type("\x03")
    terminal.until("\n> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_chat_that_is_asked_to_stop_stops(model):
    """Though nobody reads what the terminal shows."""
    model.end_turns_with("")
    terminal = Terminal(model.words(*ENDLESS))
    terminal.until("> ")
    terminal.type("hello\n")
    terminal.until(ANSWER)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 75
