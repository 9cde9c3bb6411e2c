#!/usr/bin/env python3
"""Models that transformers makes, with random weights, compute the same in penstock.

Logits, every gradient and the losses of 20 steps of AdamW, for each family with its options on and
off; the same of documents that do not see each other, which transformers computes one at a time,
and on meshes whose ranks share layers.
Usage: hugging_face_test.py PARITY_DUMP [CASE...], run by a Python that has torch.
Skipped, with exit code 77 and the reason, where transformers is not installed.
Takes over 10 s: it imports transformers, and trains each family for 20 steps.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; pip install -r tools/python_requirements.txt")
    sys.exit(77)

import torch
from safetensors.torch import load_file, save_file

VOCABULARY, SAMPLES, SEQUENCE, STEPS = 96, 4, 24, 20
BOUND = 1e-5
DOCUMENT_END = 5
ENDS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    **ENDS,
}
GPT2 = {"n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, **ENDS}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,  # One frequency is high, one between, two low.
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

# By name: the configuration's class, and its arguments.
CASES = {
    "gpt2": (transformers.GPT2Config, GPT2),
    "gpt2, a head of its own, wide, exact gelu": (
        transformers.GPT2Config,
        {**GPT2, "tie_word_embeddings": False, "n_inner": 80, "activation_function": "gelu"},
    ),
    "llama": (transformers.LlamaConfig, LLAMA),
    "llama, tied, biases, linear scaling, narrow heads": (
        transformers.LlamaConfig,
        {
            **LLAMA,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": LINEAR,
            "num_key_value_heads": 4,
            "head_dim": 6,
        },
    ),
    "llama 3, one head of keys": (
        transformers.LlamaConfig,
        {**LLAMA, "rope_parameters": LLAMA3, "num_key_value_heads": 1},
    ),
    "mistral": (transformers.MistralConfig, {**LLAMA, "sliding_window": 8}),
    "mistral, no window": (transformers.MistralConfig, {**LLAMA, "sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, LLAMA),
    "qwen2, tied, windows": (
        transformers.Qwen2Config,
        {
            **LLAMA,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
        },
    ),
    "qwen3": (transformers.Qwen3Config, {**LLAMA, "head_dim": 16}),
    "qwen3, tied, biases, windows": (
        transformers.Qwen3Config,
        {
            **LLAMA,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
}

# Learned positions, rotary ones, windows and norms of queries.
APART = ("gpt2", "llama", "mistral", "qwen3, tied, biases, windows")


def random_model(config):
    """With no parameter at a value that hides a mistake, as a bias of 0 does."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def batches(document_end):
    text = torch.randint(VOCABULARY, (STEPS, SAMPLES, SEQUENCE + 1))
    if document_end is not None:
        text[torch.rand(text.shape) < 0.1] = document_end
        text[0, 0, :3] = document_end  # Documents of one token, the first of the sample among them.
    targets = text[..., 1:].clone()
    targets[:, 0, :9] = -100  # Not as many in each microbatch.
    targets[:, 3, 20:] = -100
    return {"input": text[..., :-1].contiguous(), "target": targets}


def logits_of(model, inputs, document_end):
    if document_end is None:
        return model(inputs).logits
    samples = []
    for sample in inputs:
        ends = (sample == document_end).nonzero().flatten() + 1
        documents = [each for each in sample.tensor_split(ends) if each.numel() > 0]
        samples.append(torch.cat([model(each[None]).logits for each in documents], 1))
    return torch.cat(samples)


def loss_of(model, inputs, targets, document_end):
    logits = logits_of(model, inputs, document_end)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def theirs(model, data, document_end):
    """What parity_dump writes, by transformers and a plain loop."""
    loss, logits = loss_of(model, data["input"][0], data["target"][0], document_end)
    loss.backward()
    result = {"logits": logits.detach()}
    for name, parameter in model.named_parameters():
        result[f"gradient.{name}"] = parameter.grad.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for inputs, targets in zip(data["input"], data["target"], strict=True):
        optimizer.zero_grad()
        loss, _ = loss_of(model, inputs, targets, document_end)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {**result, "losses": torch.tensor(losses, dtype=torch.float64)}


def differences(ours, expected):
    """The largest by kind; of a gradient, as a share of its largest element."""
    assert ours.keys() == expected.keys(), set(ours) ^ set(expected)
    largest = {"logits": 0.0, "gradient": 0.0, "losses": 0.0}
    for name, tensor in expected.items():
        difference = (ours[name] - tensor).abs().max().item()
        if name.startswith("gradient."):
            difference /= tensor.abs().max().item()
        kind = name.partition(".")[0]
        largest[kind] = max(largest[kind], difference)
    return largest


MESHES = [(1, 1), (1, 2), (2, 4)]  # Pipe x tensor.


def compare(dump, name, model, document_end=None, meshes=MESHES):
    """The meshes on which it is not within the bound, as texts."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="penstock-parity-") as where:
        folder, data, out = (Path(where) / each for each in ("model", "data", "out"))
        model.save_pretrained(folder)
        tokens = batches(document_end)
        save_file(tokens, data)
        expected = theirs(model, tokens, document_end)
        for mesh in meshes:
            words = ["-" if document_end is None else str(document_end), *map(str, mesh)]
            subprocess.run([dump, "folder", folder, data, out, *words], check=True)
            found = differences(load_file(out), expected)
            figures = ", ".join(f"{kind} {value:.1e}" for kind, value in found.items())
            print(f"{name}, {mesh[0]} x {mesh[1]}: {figures}", flush=True)
            if not all(value <= BOUND for value in found.values()):
                failed.append(f"{name}, {mesh}")
    return failed


def main(dump: str, *names: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(20261124)
    failed = []
    apart = [(f"{name}, documents apart", CASES[name], DOCUMENT_END) for name in APART]
    for name, (config, arguments), end in [(*each, None) for each in CASES.items()] + apart:
        if names and name not in names:
            continue
        failed += compare(dump, name, random_model(config(**arguments)), end)
    assert not failed, f"beyond {BOUND}: {failed}"


if __name__ == "__main__":
    main(*sys.argv[1:])
