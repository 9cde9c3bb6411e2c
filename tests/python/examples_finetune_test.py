"""examples/finetune: from a folder to a folder that can be pushed; a model with random weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

import chat_templates  # noqa: E402
from chat_templates import FAMILIES  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/finetune"
CARD = "---\nlicense: apache-2.0\nlicense_name: river\n---\n# A model\n"


def make_model(folder):
    family = FAMILIES["chatml"]
    chat_templates.make_tokenizer(folder, family, family.template)
    torch.manual_seed(3)
    config = chat_templates.tiny_llama(max_position_embeddings=256, eos_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    (folder / "LICENSE").write_text("Do as you like.\n")
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"name_or_path": str(folder)}))


def run(folder, *words):
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def make_corpora(folder):
    run(folder, sys.executable, EXAMPLE / "make_chats.py", "chats.jsonl", "held_out.jsonl", 400)
    for name in ("chats", "held_out"):
        words = ["--tokenizer", "model", "--chat", "messages", "--packing", "whole"]
        words += ["--length", 256, "-o", f"{name}.bin", f"{name}.jsonl"]
        run(folder, sys.executable, "-m", "penstock.tokenize", *words)


def train(folder, save, *words):
    program = Path(os.environ["PENSTOCK_BUILD"], "bin/penstock")
    changes = {"model.path": "model", "run.directory": f"runs/{save}", "run.save": save}
    # A model that knows nothing takes larger steps, and is validated more often.
    changes |= {"optimizer.params.lr": 0.01, "run.epochs": 4, "run.eval_interval": 10}
    changes |= {"checkpoint.save_interval": 5}
    changes |= {"model.adapter.modules_to_save": "embed_tokens|lm_head"}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return run(folder, program, "train", EXAMPLE / "finetune.json", *sets, *words)


def lines_of(folder, save):
    lines = (folder / "runs" / save / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if "second" not in key}
        for line in lines
    ]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    make_model(folder / "model")
    make_corpora(folder)
    said = train(folder, "tuned")
    return folder, said


def test_the_configuration_has_at_most_25_lines():
    assert len((EXAMPLE / "finetune.json").read_text().splitlines()) <= 25


def test_the_model_learns_the_form_of_the_answers(tuned):
    folder, said = tuned
    lines = lines_of(folder, "tuned")
    held_out = [line["val_losses"]["held_out"] for line in lines if "val_loss" in line]
    assert min(held_out) < 0.8 * held_out[0]
    assert "adapters: rank 16 beside q_proj" in said and "parameters are trained" in said
    rates = [line["lr"] for line in lines if "lr" in line]
    rise = -(-3 * len(rates) // 100)
    assert rates[0] == 0 and rates[rise] == max(rates) == 0.01
    assert 0.001 <= rates[-1] < 0.0012
    epochs = [line["epoch"] for line in lines if "epoch" in line]
    assert epochs == sorted(epochs) and 3.9 < epochs[-1] < 4.1


def test_two_kills_on_the_way_change_nothing(tuned):
    folder, _ = tuned
    kills = ("--inject", "kill:rank=0,step=12", "--inject", "kill:rank=0,step=27,start=2")
    said = train(folder, "killed", *kills)
    assert said.count("resumed after step") == 2, said
    assert lines_of(folder, "killed") == lines_of(folder, "tuned")
    name = "adapter_model.safetensors"
    assert (folder / "killed" / name).read_bytes() == (folder / "tuned" / name).read_bytes()


def test_the_folder_can_be_pushed(tuned):
    folder, _ = tuned
    saved = folder / "tuned"
    names = {path.name for path in saved.iterdir()}
    wanted = "adapter_config.json adapter_model.safetensors README.md LICENSE tokenizer.json"
    assert set(wanted.split()) | {"tokenizer_config.json", "generation_config.json"} <= names
    for path in saved.iterdir():
        assert str(folder).encode() not in path.read_bytes(), path
    card = (saved / "README.md").read_text()
    assert "license: apache-2.0\nlicense_name: river\n" in card
    assert 'base_model: "model"\nlibrary_name: peft\n' in card
    assert "`chats.bin`" in card and "validation loss of held_out" in card and "(best)" in card
    best = [line for line in lines_of(folder, "tuned") if line.get("best")][-1]
    assert f"| {best['step']} (best) |" in card and f"{best['val_loss']:.4f} |" in card
    assert "- penstock " in card and f"- torch {torch.__version__.split('+')[0]}" in card
    assert transformers.AutoTokenizer.from_pretrained(saved).chat_template


def test_peft_has_the_loss_that_was_told(tuned):
    peft = pytest.importorskip("peft")
    folder, _ = tuned
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    model = peft.PeftModel.from_pretrained(base, folder / "tuned").merge_and_unload()
    program = Path(os.environ["PENSTOCK_BUILD"], "bin/penstock")
    run(folder, program, "checkpoint", "merge", "tuned", "model", "merged")
    merged = {}
    for file in (folder / "merged").glob("*.safetensors"):
        merged |= load_file(file)
    for name, tensor in merged.items():
        assert (model.state_dict()[name] - tensor).abs().max() < 1e-6, name
    told = json.loads(
        run(
            *(folder, program, "evaluate", "merged", "--data", "held_out.bin", "--json"),
            *("--sequence-length", 256, "--set", "data.attend_across_documents=false"),
        ).splitlines()[-1]
    )
    best = min(line["val_loss"] for line in lines_of(folder, "tuned") if "val_loss" in line)
    assert abs(told["loss"] - best) < 0.02 * best  # A validation takes a part of the samples.
