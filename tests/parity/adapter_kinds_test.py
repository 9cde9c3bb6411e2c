#!/usr/bin/env python3
"""Kinds of adapters, against PEFT: rsLoRA, patterns of rank and alpha, whole modules, DoRA.

From the same first values, 20 steps give the losses and the adapters of a plain loop over PEFT's
model.  PEFT loads what is saved, every tensor of it; what `penstock checkpoint merge` and
`model.adapter.merge` make of it is what PEFT merges.  Every layout gives the same bits.
Usage: adapter_kinds_test.py PENSTOCK, run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers or PEFT is not installed.
Takes over 10 s: it imports transformers and PEFT, and trains each kind.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

try:
    import peft
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt peft")
    sys.exit(77)

import torch
from adapter_test import ADAPTER_BOUND, RANK, Runs, check_families, expect_near, plain_loop
from adapters import adapted_by_peft
from folder_runs import expect_same, tensors

PATTERNS = {
    "llama": {
        "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 6},
        "alpha_pattern": {"v_proj": 32},
    },
    "gpt2": {
        "rank_pattern": {"c_attn": 2, "h.1.mlp.c_proj": 6},
        "alpha_pattern": {"attn.c_proj": 3.5},
    },
}
KINDS = {
    "rsLoRA": {"use_rslora": True},
    "patterns": {},
    "DoRA": {"use_dora": True},
    "whole modules": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "all linears, DoRA and rsLoRA": {
        "targets": "all-linear",
        "use_dora": True,
        "use_rslora": True,
        "dropout": 0.0,
    },
}
MERGED_BOUND = 1e-6  # Weights of about 0.02, products in float.


def load(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def expect_loaded(base: Path, saved: Path) -> None:
    """PEFT finds each of its tensors in the file, and no other one is there."""
    model = peft.get_peft_model(load(base), peft.PeftConfig.from_pretrained(saved))
    result = peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(saved)))
    assert not result.unexpected_keys, result.unexpected_keys
    missing = [n for n in result.missing_keys if "lora_" in n or "modules_to_save" in n]
    assert not missing, missing
    kept = peft.get_peft_model_state_dict(model)
    ours = tensors(saved)
    assert {n for n in kept if "base_layer" not in n} == set(ours), set(kept) ^ set(ours)
    for name, tensor in ours.items():
        assert torch.equal(kept[name], tensor), name


def expect_merges(runs: Runs, saved: Path, adapter: dict) -> None:
    model, _ = adapted_by_peft(load(runs.base), saved)
    expected = model.merge_and_unload().state_dict()
    still = {"type": "AdamW", "params": {"lr": 0.0}}
    onward = adapter | {"path": str(saved), "merge": True}
    by_run = runs.train(adapter=onward, optimizer=still, run={"steps": 1, "eval_batches": 1})
    by_command = runs.folder / f"merged-{runs.number}"
    command = [runs.penstock, "checkpoint", "merge", saved, runs.base, by_command]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and "merged: the adapters of" in done.stdout, done
    expect_same(by_run, by_command)
    merged = tensors(by_command)
    worst = max((tensor - expected[name]).abs().max().item() for name, tensor in merged.items())
    assert worst <= MERGED_BOUND, worst
    assert any(not torch.equal(t, tensors(runs.base)[n]) for n, t in merged.items())


def check(penstock: str, folder: Path, family: str) -> None:
    runs = Runs(penstock, folder, family)
    kinds = KINDS | {"patterns": PATTERNS[family]}
    for kind, adapter in kinds.items():
        if family == "gpt2" and kind == "whole modules":
            told = runs.train(adapter={"modules_to_save": "lm_head"}, fails=True)
            assert "the head of this model is its embedding" in told, told
            continue
        start = runs.train(adapter=adapter, optimizer={"type": "AdamW", "params": {"lr": 0.0}})
        one = runs.train(adapter=adapter)
        ours = runs.losses()
        model, trained = adapted_by_peft(load(runs.base), start)
        losses = plain_loop(model, trained, runs.samples)
        assert runs.losses() == ours
        expect_near(f"{family}, {kind}", runs, one, losses, trained)
        moved = max((tensors(one)[n] - t).abs().max() for n, t in tensors(start).items())
        assert moved > 100 * ADAPTER_BOUND, "so little was trained that nothing was compared"
        expect_loaded(runs.base, one)
        expect_merges(runs, one, adapter)
        expect_same(runs.train(pipe=2, adapter=adapter, schedule={"name": "zb_h1"}), one)
        expect_same(runs.train(pipe=2, adapter=adapter | {"path": str(start)}), one)
        sharded = runs.train(replicas=2, adapter=adapter, zero_optimization={"stage": 3})
        expect_same(sharded, runs.train(replicas=2, adapter=adapter))
        kept = {"checkpoint": {"directory": str(folder / f"kept-{runs.number}")}}
        kept["checkpoint"]["save_interval"] = 10
        half = {"steps": 10, "eval_batches": 1}
        runs.train(adapter=adapter, run=half, **kept)
        expect_same(runs.train(adapter=adapter, words=("--resume", "auto"), **kept), one)
    check_refusals(runs, family)


def check_refusals(runs: Runs, family: str) -> None:
    one = runs.train(adapter=PATTERNS[family])
    told = runs.train(adapter={"path": str(one)}, fails=True)
    assert "rank_pattern" in told and "model.adapter.rank_pattern says it" in told, told
    told = runs.train(adapter={"path": str(one), "use_dora": True}, fails=True)
    assert "use_dora" in told, told
    told = runs.train(adapter={"modules_to_save": "ln_ff|ln_f|norm"}, fails=True)
    assert '"ln_ff" is no module of the model' in told, told
    told = runs.train(adapter={"init_lora_weights": "pissa"}, fails=True)
    assert 'expected "uniform" or "gaussian"' in told, told
    drawn = tensors(runs.train(
        adapter={"init_lora_weights": "gaussian", "targets": "all-linear", "rank": 16},
        optimizer={"type": "AdamW", "params": {"lr": 0.0}},
    ))  # fmt: skip
    values = torch.cat([t.flatten() for n, t in drawn.items() if "lora_A" in n])
    assert abs(values.std().item() * 16 - 1) < 0.05 and abs(values.mean().item()) < 0.01
    file = one / "adapter_config.json"
    said = json.loads(file.read_text())
    assert said["r"] == RANK and said["rank_pattern"] == PATTERNS[family]["rank_pattern"], said
    file.write_text(json.dumps(said | {"use_qalora": True}))
    command = [runs.penstock, "checkpoint", "merge", one, runs.base, runs.folder / "refused"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 2 and "use_qalora" in done.stderr, done
    assert not (runs.folder / "refused").exists()


if __name__ == "__main__":
    check_families(*sys.argv[1:], check)
