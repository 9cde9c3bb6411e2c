"""What counts in chats of thirteen families of templates, against transformers and TRL."""

import os
import random
import re
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

import chat_templates  # noqa: E402
from chat_templates import FAMILIES, unmarked  # noqa: E402

from penstock.tokenize._chats import Chat  # noqa: E402
from penstock.tokenize._encoder import Encoder  # noqa: E402

QUICK, WHOLE = 60, 2000
TEXTS = (
    "the river",
    "a",
    "",
    "12 more:\n",
    "\nasks",
    " slow ",
    "h\u00e9h\u00e9 \U0001f600",
    "a user: what?",
    "assistant",
    "USER: a",
    "<b>",
    "</thin",
    "<|",
)


def random_text(draw):
    return " ".join(draw.choice(TEXTS) for _ in range(draw.randint(1, 4)))


def random_chat(draw, family):
    messages = []
    if family.has_system and draw.random() < 0.4:
        messages.append({"role": "system", "content": random_text(draw)})
    elif family.begins_with_assistant and draw.random() < 0.2:
        messages.append({"role": "assistant", "content": random_text(draw)})
    for turn in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": random_text(draw)})
        if turn == 3 and draw.random() < 0.5:
            continue  # Nobody answers.
        said = random_text(draw)
        if family.thinks and draw.random() < 0.5:
            said = f"<think>\n{random_text(draw)}\n</think>\n\n{said}"
        messages.append({"role": "assistant", "content": said})
    if family.thinks_apart and messages[-1]["role"] == "assistant" and draw.random() < 0.5:
        messages[-1]["thinking"] = f"a {random_text(draw)}"
    return messages


class Both:
    """A family's tokenizers: penstock's without marks in the template, transformers' with them."""

    def __init__(self, folder, name):
        self.family = FAMILIES[name]
        chat_templates.make_tokenizer(folder / "plain", self.family, unmarked(self.family.template))
        chat_templates.make_tokenizer(folder / "marked", self.family, self.family.template)
        self.ours = self.encoder(folder / "plain")
        self.marked = self.encoder(folder / "marked")
        self.theirs = transformers.AutoTokenizer.from_pretrained(folder / "marked")

    @staticmethod
    def encoder(folder):
        return Encoder(folder, end_of_text=None, adds_special_tokens=False, is_for_chats=True)

    def expected(self, messages):
        """Tokens, and which of them the marks enclose, by the characters of each token."""
        out = self.theirs.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        return out["input_ids"], [bool(each) for each in out["assistant_masks"]]


def without_end(tokens, counts, size, end):
    """A document without the token that penstock ends it with, which counts nowhere."""
    if len(tokens) == size + 1:
        assert tokens[-1] == end
        assert not counts[-1]
    return tokens[:size], counts[:size]


def check(both, messages):
    tokens, counts = both.expected(messages)
    for encoder in (both.ours, both.marked):
        ours = encoder.encode_document(Chat("c:1", messages), masks=True)
        got = without_end(*ours, len(tokens), encoder.end_of_text)
        assert got == (tokens, counts), (messages, both.theirs.convert_ids_to_tokens(tokens))


def check_family(folder, name, count):
    seed = int(os.environ.get("PENSTOCK_SEED", "7"))
    draw = random.Random(f"{seed} {name}")
    both = Both(folder, name)
    for number in range(count):
        messages = random_chat(draw, both.family)
        print(f"PENSTOCK_SEED={seed} {name} chat {number}: {messages}")
        check(both, messages)


@pytest.mark.parametrize("name", FAMILIES)
def test_random_chats_count_as_transformers_says(tmp_path, name):
    check_family(tmp_path, name, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_many_random_chats_count_as_transformers_says(tmp_path, name):
    check_family(tmp_path, name, WHOLE)


TRLS = ("deepseek_r1_distill", "gemma", "gptoss", "llama3", "phi3", "qwen2_5", "qwen3")


@pytest.mark.parametrize("name", TRLS)
def test_templates_that_trl_trains_with_count_the_same(tmp_path, name):
    """`pip install trl` for these: its SFT takes the mask of what its templates mark."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: its templates are not tried")
    folder = Path(trl.__file__).parent / "chat_templates"
    template = (folder / f"{name}_training.jinja").read_text(encoding="utf-8")
    specials = sorted(
        {*re.findall(r"<[|\uff5c][^<>'\" ]+?[|\uff5c]>|<(?:start|end)_of_turn>", template)}
    )
    family = chat_templates.Family(
        template, ("<eos>", "<bos>", *specials), eos="<eos>", bos="<bos>", has_system=False
    )
    chat_templates.make_tokenizer(tmp_path / "tok", family, template)
    ours = Both.encoder(tmp_path / "tok")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok")
    draw = random.Random(name)
    for _ in range(50):
        messages = random_chat(draw, family)
        out = theirs.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        tokens, counts = out["input_ids"], [bool(each) for each in out["assistant_masks"]]
        got = ours.encode_document(Chat("c:1", messages), masks=True)
        assert without_end(*got, len(tokens), ours.end_of_text) == (tokens, counts), messages
