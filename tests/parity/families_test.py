#!/usr/bin/env python3
"""Models of further families, and of further rotary scalings, are in penstock as in transformers.

As hugging_face_test.py: logits, gradients and the losses of 20 steps; and what is generated, as
generate_test.py.  Folders that penstock has saved are opened by transformers, with equal tensors.
Usage: families_test.py PENSTOCK PARITY_DUMP PART, run by a Python that has torch; PART: "families",
"rotary" or "folders".  Skipped, with exit code 77 and the reason, where transformers is not
installed.  Takes over 10 s: it imports transformers, and trains each model for 20 steps.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import torch
from folder_runs import FolderRuns, expect_same, quiet, tensors
from generate_test import PROMPT, TOKENS, ours
from generate_test import theirs as generated_by_transformers
from hugging_face_test import BOUND, DOCUMENT_END, LLAMA, VOCABULARY, compare, random_model

# Without a token for padding: transformers gives its embedding no gradient.
# More layers than a family's period, so that each kind of layer is there.
DEEP = LLAMA | {"num_hidden_layers": 5}
GEMMA = DEEP | {"head_dim": 16, "pad_token_id": None}
WINDOWS = {"sliding_window": 8}
ALTERNATE = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
GROUPED, FUSED = [(1, 1), (1, 2), (2, 4)], [(1, 1), (2, 1)]
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}


def longrope(pairs: int) -> dict:
    """Lengths up to 16 are short; tests have longer ones."""
    short, long = [1.0 + 0.1 * i for i in range(pairs)], [1.5 + i for i in range(pairs)]
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long}


# By name: the configuration's class, its arguments, the meshes that can have it, and the token that
# ends a document.
FAMILIES = {
    "phi3": (
        transformers.Phi3Config,
        LLAMA | {"num_key_value_heads": 4, "pad_token_id": None},
        [(1, 1), (1, 2), (2, 4)],
        None,
    ),
    "phi3, groups of heads, windows, parts of heads": (
        transformers.Phi3Config,
        LLAMA
        | WINDOWS
        | {
            "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        },
        FUSED,
        DOCUMENT_END,
    ),
    "granite": (
        transformers.GraniteConfig,
        LLAMA | MULTIPLIERS | {"attention_bias": True, "tie_word_embeddings": True},
        GROUPED,
        None,
    ),
    "olmo2": (
        transformers.Olmo2Config,
        LLAMA | {"pad_token_id": None},
        GROUPED,
        DOCUMENT_END,
    ),
    "smollm3": (transformers.SmolLM3Config, DEEP | {"pad_token_id": None}, GROUPED, DOCUMENT_END),
    "smollm3, windows": (
        transformers.SmolLM3Config,
        DEEP
        | WINDOWS
        | {
            "pad_token_id": None,
            "use_sliding_window": True,
            "no_rope_layer_interval": 2,
            "tie_word_embeddings": False,
        },
        [(1, 1)],
        None,
    ),
    "gemma": (transformers.GemmaConfig, GEMMA | {"num_hidden_layers": 2}, GROUPED, None),
    "gemma2": (
        transformers.Gemma2Config,
        # Caps so low, and scores so high, that they show.
        GEMMA
        | WINDOWS
        | {
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        GROUPED,
        DOCUMENT_END,
    ),
    "gemma2, no caps": (
        transformers.Gemma2Config,
        GEMMA
        | WINDOWS
        | {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ALTERNATE,
        },
        [(1, 1)],
        None,
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        GEMMA | {"sliding_window": 5, "sliding_window_pattern": 3, "query_pre_attn_scalar": 12},
        GROUPED,
        DOCUMENT_END,
    ),
}
ROTARY = {
    "yarn": (
        transformers.LlamaConfig,
        LLAMA | {"rope_parameters": YARN | {"original_max_position_embeddings": 16}},
    ),
    "yarn, its own bounds": (
        transformers.Qwen2Config,
        LLAMA
        | {
            "rope_parameters": YARN
            | {
                "original_max_position_embeddings": 32,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 1.3,
            }
        },
    ),
    "dynamic": (
        transformers.LlamaConfig,
        LLAMA
        | {
            "max_position_embeddings": 16,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
        },
    ),
    "longrope": (
        transformers.LlamaConfig,
        LLAMA | {"rope_parameters": longrope(4) | {"original_max_position_embeddings": 8}},
    ),
    "longrope, short": (
        transformers.LlamaConfig,
        LLAMA
        | {
            "rope_parameters": longrope(4) | {"original_max_position_embeddings": 64, "factor": 4.0}
        },
    ),
    "phi3's longrope": (
        transformers.Phi3Config,
        LLAMA
        | {
            "pad_token_id": None,
            "original_max_position_embeddings": 8,
            "rope_parameters": longrope(3) | {"partial_rotary_factor": 0.75},
        },
    ),
    "gemma3's full layers, linear": (
        transformers.Gemma3TextConfig,
        GEMMA
        | {
            "sliding_window": 5,
            "layer_types": ALTERNATE,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}


def check_generated(penstock: str, name: str, model) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as where:
        folder = Path(where)
        model.generation_config.eos_token_id = None
        model.config.eos_token_id = None
        model.save_pretrained(folder)
        prompt = torch.randint(1, VOCABULARY, (PROMPT,)).tolist()
        expected = generated_by_transformers(model, prompt)
        assert len(expected) == TOKENS
        found = ours(penstock, folder, prompt)
        assert found == expected, (name, found, expected)


def check_all(penstock: str, dump: str, cases: dict, names) -> list[str]:
    failed = []
    for name, (config, arguments, *more) in cases.items():
        if names and name not in names:
            continue
        meshes, end = more or ([(1, 1), (1, 2)], None)
        if "longrope" in name and config is transformers.Phi3Config:
            meshes = [(1, 1)]
        failed += compare(dump, name, random_model(config(**arguments)), None, meshes)
        if end is not None:
            model = random_model(config(**arguments))
            failed += compare(dump, f"{name}, documents apart", model, end, meshes[:2])
        check_generated(penstock, name, random_model(config(**arguments)))
    return failed


def check_folders(penstock: str) -> None:
    """Folders come back as they were, train in every layout to the same bits, and are opened."""
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as where:
        folder = Path(where)
        text = folder / "text"
        text.write_text("".join(f"{i} times {i} is {i * i}\n" for i in range(4000)))
        config = {
            "train_batch_size": 4,
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"params": {"lr": 1e-3}},
            "run": {"steps": 2, "eval_batches": 1},
            "data": {"path": str(text)},
        }
        runs = FolderRuns(penstock, folder, config, {"sequence_length": 16})
        for name, (kind, arguments, *_) in FAMILIES.items():
            if "," in name:
                continue
            base = runs.make(name, kind(**arguments | {"vocab_size": 300}), dtype=torch.bfloat16)
            still = runs.train(base, pipe=2, optimizer={"params": {"lr": 0.0}})
            expect_same(still, base)
            assert (still / "config.json").read_text() == (base / "config.json").read_text()
            saved = runs.train(base)
            expect_same(runs.train(base, pipe=2, schedule="zbv"), saved)
            opened = transformers.AutoModelForCausalLM.from_pretrained(saved)
            for parameter, tensor in tensors(saved).items():
                assert torch.equal(opened.state_dict()[parameter], tensor), (name, parameter)
            print(name, flush=True)
        check_torch_files(runs)


def write_torch_files(folder: Path, files: int) -> None:
    """Puts the folder's tensors into files of torch.save(), in place of its safetensors."""
    whole = tensors(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    if files == 1:
        torch.save(whole, folder / "pytorch_model.bin")
        return
    weight_map = {}
    for i in range(files):
        name = f"pytorch_model-{i + 1:05}-of-{files:05}.bin"
        part = {key: whole[key] for j, key in enumerate(whole) if j % files == i}
        torch.save(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def check_torch_files(runs: FolderRuns) -> None:
    """Models of torch's files are those of safetensors, on stages and on ranks that share."""
    config = transformers.LlamaConfig(**LLAMA | {"vocab_size": 300})
    for files in (1, 3):
        base = runs.make(f"in {files}", config, dtype=torch.bfloat16)
        expected = tensors(base)
        write_torch_files(base, files)
        for changes in ({"pipe": 2}, {"mesh": {"tensor": 2}}):
            still = tensors(runs.train(base, optimizer={"params": {"lr": 0.0}}, **changes))
            assert still.keys() == expected.keys(), set(still) ^ set(expected)
            for name, tensor in expected.items():
                assert torch.equal(still[name], tensor), (files, name)
        print(f"torch's files: {files}", flush=True)


def main(penstock: str, dump: str, part: str, *names: str) -> None:
    quiet()
    torch.manual_seed(20261128)
    failed = []
    if part == "folders":
        check_folders(penstock)
    else:
        cases = {"families": FAMILIES, "rotary": ROTARY}[part]
        failed = check_all(penstock, dump, cases, names)
    assert not failed, f"beyond {BOUND}: {failed}"


if __name__ == "__main__":
    main(*sys.argv[1:])
