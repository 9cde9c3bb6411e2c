"""The loss over packed chats is that of each chat alone, as transformers computes it."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

import chat_templates  # noqa: E402
from chat_templates import FAMILIES, unmarked  # noqa: E402

LENGTH = 96


def make_model(folder):
    """With a tokenizer whose token that ends texts also ends each turn."""
    family = FAMILIES["llama2"]
    chat_templates.make_tokenizer(folder, family, unmarked(family.template))
    torch.manual_seed(3)
    config = chat_templates.tiny_llama(max_position_embeddings=128)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * torch.randn_like(each))
    model.save_pretrained(folder)
    return model.eval()


def make_chats(count):
    draw = random.Random(4)

    def text(most):
        return " ".join(draw.choices(["the", "river"], k=draw.randint(1, most)))

    return [
        [
            {"role": role, "content": text(4)}
            for _ in range(draw.randint(1, 2))
            for role in ("user", "assistant")
        ]
        for _ in range(count)
    ]


def alone(model, folder, chats):
    """The mean over what the assistants write, a chat at a time."""
    family = FAMILIES["llama2"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for chat in chats:
        made = tokenizer.apply_chat_template(
            chat,
            chat_template=family.template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        tokens = torch.tensor(made["input_ids"])
        labels = tokens.where(torch.tensor(made["assistant_masks"]) == 1, -100)
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, :-1].double()
        total += torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum").item()
        count += int((labels[1:] != -100).sum())
    return total / count, count


def words_of(name, folder, *words):
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", name)
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_loss_of_packed_chats_is_that_of_each_alone(tmp_path):
    from penstock.tokenize import main

    model = make_model(tmp_path / "model")
    chats = make_chats(40)
    rows = "\n".join(json.dumps({"messages": chat}) for chat in chats)
    (tmp_path / "c.jsonl").write_text(rows)
    expected, count = alone(model, tmp_path / "model", chats)
    samples = []
    for packing in ("whole", "one"):
        output = str(tmp_path / f"{packing}.bin")
        words = ["--tokenizer", str(tmp_path / "model"), "--chat", "messages", "-o", output]
        words += [str(tmp_path / "c.jsonl"), "--packing", packing, "--length", str(LENGTH)]
        assert main(words) == 0
        samples.append(json.loads(Path(f"{output}.json").read_text())["tokens"] // LENGTH)
        answer = words_of(
            *("penstock", tmp_path, "evaluate", "model", "--data", f"{packing}.bin"),
            *("--sequence-length", str(LENGTH), "--json"),
            *("--set", "data.attend_across_documents=false"),
        )
        found = json.loads(answer.strip().splitlines()[-1])
        assert found["tokens"] == count
        # Float against double, over sums of up to 48 products: far below what another
        # document's token in view would change.
        assert abs(found["loss"] - expected) < 2e-5 * expected, packing
    assert samples[0] < samples[1] * 0.8


def test_an_answer_is_generated_behind_the_template(tmp_path, monkeypatch):
    model = make_model(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    chat = [{"role": "user", "content": "the river"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    monkeypatch.setenv("PENSTOCK_PYTHON", sys.executable)
    words = ["generate", "model", "--chat", "--prompt", "the river", "--max-tokens", "5"]
    told = json.loads(words_of("penstock", tmp_path, *words, "--json"))
    with torch.no_grad():
        written = model.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
    assert told["prompt_tokens"] == prompt
    assert told["tokens"] == written[0, len(prompt) :].tolist()
    assert words_of("penstock", tmp_path, *words) == told["text"] + "\n"


def test_letters_are_refused_for_a_model_with_a_tokenizer(tmp_path):
    make_model(tmp_path / "model")
    folder = tmp_path / "letters"
    folder.mkdir()
    for name in ("train.bin", "val.bin", "meta.pkl"):
        (folder / name).write_bytes(b"\x01\x00" * 400)
    configuration = {
        "train_batch_size": 2,
        "model": {"type": "hugging_face", "path": "model", "sequence_length": 16},
        "data": {"path": "letters"},
        "run": {"steps": 1, "directory": "run"},
    }
    (tmp_path / "c.json").write_text(json.dumps(configuration))
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
    words = [program, "train", "c.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert 'letters/meta.pkl": says that tokens are letters' in done.stderr
    asked = [program, "evaluate", "model", "--data", "letters", "--sequence-length", "16"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "has two parts: which?" in done.stderr
    (folder / "meta.pkl").unlink()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
