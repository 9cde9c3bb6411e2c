"""Folders of models as Hugging Face has them: tiny ones to train, and those that a run saves.

Needs the standard library only, and reads files by the format's own rules and nothing of ours.
"""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path

ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8}

# A tensor's type, shape and bytes.
Tensors = dict[str, tuple[str, list[int], bytes]]

TINY_LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


# Heads, positions and features that 2 and 4 do not divide.
TINY_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 63,
    "n_embd": 30,
    "n_inner": 45,
    "n_layer": 2,
    "n_head": 5,
}


def write_gpt2(folder: Path, **changes: object) -> Path:
    """A folder with config.json alone, a tiny GPT-2's."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**TINY_GPT2, **changes}))
    return folder


def gpt2_shapes(config: dict) -> dict[str, list[int]]:
    """The shape of each tensor of a GPT-2 of that config.json, by its name."""
    hidden, inner = config["n_embd"], config["n_inner"]
    linears = {
        "attn.c_attn": [hidden, 3 * hidden],
        "attn.c_proj": [hidden, hidden],
        "mlp.c_fc": [hidden, inner],
        "mlp.c_proj": [inner, hidden],
    }
    shapes = {
        "transformer.wte.weight": [config["vocab_size"], hidden],
        "transformer.wpe.weight": [config["n_positions"], hidden],
        "transformer.ln_f.weight": [hidden],
        "transformer.ln_f.bias": [hidden],
    }
    for layer in range(config["n_layer"]):
        for part, shape in linears.items():
            shapes[f"transformer.h.{layer}.{part}.weight"] = shape
            shapes[f"transformer.h.{layer}.{part}.bias"] = shape[1:]
        for norm in ("ln_1", "ln_2"):
            for part in ("weight", "bias"):
                shapes[f"transformer.h.{layer}.{norm}.{part}"] = [hidden]
    return shapes


def shapes_of(config: dict) -> dict[str, list[int]]:
    return gpt2_shapes(config) if config["model_type"] == "gpt2" else llama_shapes(config)


def write_llama(folder: Path, **changes: object) -> Path:
    """A folder with config.json alone, the tiny Llama's: enough for random first weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**TINY_LLAMA, **changes}))
    return folder


def llama_shapes(config: dict) -> dict[str, list[int]]:
    """The shape of each tensor of a Llama of that config.json, by its name."""
    hidden, inner, heads = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    keys = hidden // heads * config["num_key_value_heads"]
    linears = {
        "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    norms = {key: [hidden] for key in ("input_layernorm", "post_attention_layernorm")}
    shapes = {
        "model.embed_tokens.weight": [config["vocab_size"], hidden],
        "model.norm.weight": [hidden],
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        for part, shape in (linears | norms).items():
            shapes[f"model.layers.{layer}.{part}.weight"] = shape
    return shapes


def write_random_weights(folder: Path, deviation: float = 0.4) -> None:
    """Gives a folder a model.safetensors of F32."""
    generator = random.Random(11)
    header, data = {}, b""
    for name, shape in shapes_of(json.loads((folder / "config.json").read_text())).items():
        count = math.prod(shape)
        values = struct.pack(f"<{count}f", *(generator.gauss(0, deviation) for _ in range(count)))
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path: Path) -> Tensors:
    """The tensors of a file, which has nothing else."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    data = content[8 + size :]
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        length = math.prod(entry["shape"]) * ELEMENT_BYTES[entry["dtype"]]
        if first != end or last - first != length:
            raise ValueError(f"{path}: {name} is at {first}..{last}, after {end}, of {length}")
        tensors[name] = (entry["dtype"], entry["shape"], data[first:last])
        end = last
    if end != len(data):
        raise ValueError(f"{path}: {len(data) - end} bytes belong to no tensor")
    return tensors


def read_weights(folder: Path) -> Tensors:
    """The tensors that the index names, each from the file that it names, and no others."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {name: read_safetensors(folder / name) for name in set(index["weight_map"].values())}
    tensors = {name: files[file][name] for name, file in index["weight_map"].items()}
    stored = sum(len(tensor) for file in files.values() for _, _, tensor in file.values())
    if stored != index["metadata"]["total_size"] or len(tensors) != sum(map(len, files.values())):
        raise ValueError(f"{folder}: the index and the files do not agree")
    return tensors
