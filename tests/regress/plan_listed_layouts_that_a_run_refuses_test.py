"""`penstock plan` listed layouts whose ranks share layers and that `penstock train` refuses: it had
not asked whether numerics.invariant, or schedule.adapt, allows them.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

PENSTOCK = Path(os.environ["PENSTOCK_BUILD"]) / "bin" / "penstock"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def planned(folder, **more):
    """Numbers of ranks that share layers, among all layouts, and what is said of others."""
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(LLAMA))
    model = {"type": "hugging_face", "path": "m", "weights": "random", "sequence_length": 32}
    config = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        **more,
        "model": {**model, **more.get("model", {})},
    }
    (folder / "run.json").write_text(json.dumps(config))
    ask = ["plan", "run.json", "--world", "4", "--memory", "1GB", "--format", "json"]
    speeds = ["--flops", "1e10", "--bandwidth", "1e10", "--link", "intra=1GB/s:10us"]
    done = subprocess.run(
        [str(PENSTOCK), *ask, *speeds, "--top", "1000"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["candidates"]
    return {each.get("tensor", 1) for each in found}, done.stderr


INVARIANT = {"numerics": {"invariant": True}}
LENGTH = {"model": {"sequence_length": 31}}


@pytest.mark.parametrize(
    ("more", "sizes", "said"),
    [
        ({}, {1, 2, 4}, ""),
        (INVARIANT, {1, 2}, "of 2 heads of keys and values each rank needs as many, and one"),
        (INVARIANT | LENGTH, {1}, "samples of 31 tokens have no 2 equal parts"),
        (INVARIANT | {"bf16": {"enabled": True}}, {1}, "summands that are rounded to bf16"),
    ],
)
def test_a_plan_has_the_layouts_that_a_run_takes(tmp_path, more, sizes, said):
    found, told = planned(tmp_path, **more)
    assert found == sizes
    assert said in told
