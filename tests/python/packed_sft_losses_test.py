"""Losses of fine-tuning on chats, step by step, beside those of TRL's SFTTrainer.

`pip install trl` for it; skipped where that is missing.
"""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl", reason="TRL is not installed: losses are not compared with its")

import chat_templates  # noqa: E402
from chat_templates import FAMILIES, unmarked  # noqa: E402

LENGTH, BATCH, STEPS, RATE = 96, 4, 20, 1e-3


def make_model(folder):
    family = FAMILIES["llama2"]
    chat_templates.make_tokenizer(folder, family, unmarked(family.template))
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(chat_templates.tiny_llama(max_position_embeddings=128))
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * torch.randn_like(each))
    model.save_pretrained(folder)


def make_chats():
    draw = random.Random(4)

    def text(most):
        return " ".join(draw.choices(["the", "river"], k=draw.randint(1, most)))

    roles = ("user", "assistant")
    return [
        {
            "messages": [
                {"role": role, "content": text(4)}
                for _ in range(draw.randint(1, 2))
                for role in roles
            ]
        }
        for _ in range(BATCH * STEPS)
    ]


def theirs(folder, rows):
    from datasets import Dataset

    losses = []

    class Heard(trl.SFTTrainer):
        def training_step(self, *given, **named):
            loss = super().training_step(*given, **named)
            losses.append(loss.item())
            return loss

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = FAMILIES["llama2"].template
    options = trl.SFTConfig(
        output_dir=str(folder.parent / "trl"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        train_sampling_strategy="sequential",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        assistant_only_loss=True,
        loss_type="nll",
        max_length=LENGTH,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    Heard(
        model=model, args=options, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    ).train()
    return losses


def ours(folder, rows):
    from penstock.tokenize import main

    root = folder.parent
    (root / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--tokenizer", str(folder), "--chat", "messages", "-o", str(root / "c.bin")]
    words += [str(root / "c.jsonl"), "--packing", "one", "--length", str(LENGTH)]
    assert main(words) == 0
    configuration = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": 2,
        "mesh": {"pipe": 2},
        "model": {"type": "hugging_face", "path": str(folder), "sequence_length": LENGTH},
        "data": {
            "path": str(root / "c.bin"),
            "validation": str(root / "c.bin"),
            "shuffle": False,
            "attend_across_documents": False,
        },
        "optimizer": {"type": "AdamW", "params": {"lr": RATE, "weight_decay": 0.0}},
        "run": {"steps": STEPS, "eval_batches": 1},
    }
    (root / "c.json").write_text(json.dumps(configuration))
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
    run = [program, "train", "c.json", "--run", "run"]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = map(json.loads, (root / "run" / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_losses_are_those_of_trl(tmp_path):
    make_model(tmp_path / "model")
    rows = make_chats()
    expected, found = theirs(tmp_path / "model", rows), ours(tmp_path / "model", rows)
    assert len(expected) == len(found) == STEPS
    assert expected[-1] < 0.9 * expected[0]
    # Sums of float in another order, through 20 updates.
    differences = [abs(a - b) for a, b in zip(expected, found, strict=True)]
    assert max(differences) < 1e-5, differences
