"""A part of bench/gpu.py: a decoder on one device, beside transformers' in a plain loop."""

from __future__ import annotations

import array
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu_rows import (
    BUILD,
    NEEDS_DEVICE,
    PYTHON,
    ROOT,
    RUN_LIMIT_S,
    CommandError,
    Machine,
    Row,
    call,
    last_json,
)

# Llama's shape, 0.9 billion parameters.
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip


def decoder(machine: Machine) -> Iterator[Row]:
    """`penstock train` on one rank, and transformers' model in a plain loop."""
    sequence, batch, microbatches, steps = 2048, 16, 4, 8
    for recomputes in (False, True):
        what = f"Llama 0.9 B, bf16, {batch} samples of {sequence}, {microbatches} microbatches"
        what += ", recomputed" if recomputes else ""
        if machine.devices == 0:
            yield Row("decoder", what, why=NEEDS_DEVICE)
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "model").mkdir()
            (folder / "model" / "config.json").write_text(json.dumps(LLAMA))
            tokens = array.array("H", (i * 7919 % LLAMA["vocab_size"] for i in range(2**20)))
            (folder / "corpus.bin").write_bytes(tokens.tobytes())
            config = {
                "train_batch_size": batch,
                "train_micro_batch_size_per_gpu": batch // microbatches,
                "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
                "model": {"type": "hugging_face", "path": str(folder / "model"),
                          "weights": "random", "sequence_length": sequence},
                "data": {"path": str(folder / "corpus.bin"), "format": "uint16"},
                "run": {"steps": steps + 3, "eval_batches": 1},
                "launch": {"device": "cuda"},
            }  # fmt: skip
            if recomputes:
                config["pipeline"] = {"activation_checkpoint_interval": 1}
            path = folder / "config.json"
            path.write_text(json.dumps(config))
            try:
                call([BUILD / "bin" / "penstock", "train", path, "--run", folder / "run"],
                            2 * RUN_LIMIT_S)  # fmt: skip
                lines = (folder / "run/metrics.jsonl").read_text().splitlines()
                times = [json.loads(line).get("step_time_seconds") for line in lines]
                mine = 1e3 * statistics.median([t for t in times if t is not None][3:])
                figures = {"ms": round(mine, 1)}
            except CommandError as error:
                yield Row("decoder", what, why=str(error))
                continue
            try:
                words = ["--sequence", sequence, "--batch", batch, "--microbatches", microbatches,
                         "--steps", steps] + ["--recompute"] * recomputes  # fmt: skip
                script = ROOT / "bench" / "peers" / "llama_plain_loop.py"
                peer = last_json(call([PYTHON, script, folder / "model", *words], RUN_LIMIT_S))
                table = LLAMA["vocab_size"] * LLAMA["hidden_size"]  # Embedding is no product.
                per_step = 6 * (peer["parameters"] - table) * batch * sequence
                figures["of transformers"] = round(mine / peer["median_ms"], 3)
                figures["TFLOP/s of linears"] = round(per_step / mine / 1e9, 1)
                figures["transformers' MB"] = round(peer["peak_device_mb"])
            except CommandError as error:
                figures["transformers"] = str(error)
            yield Row("decoder", what, figures)
