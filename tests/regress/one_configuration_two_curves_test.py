"""The same WarmupCosineLR gave 1.50e-3 at step 20 in `penstock train`, and 2.44e-3 in initialize():
another warmup by default, other defaults, and steps counted from 1 instead of 0.  The curve is one.
initialize() is one step behind it, as DeepSpeed is: its first step has the rate 0.
"""

import json
import subprocess

import pytest
import support
import torch

from penstock.lr_schedules import WarmupCosineLR

STEPS = 12
COURSES = [
    {"warmup_num_steps": 4, "total_num_steps": STEPS},
    {"warmup_num_steps": 5, "total_num_steps": 9, "warmup_type": "linear", "cos_min_ratio": 0.1},
    {"warmup_num_steps": 0, "total_num_steps": STEPS, "warmup_min_ratio": 0.25},
    {"warmup_num_steps": 30, "total_num_steps": 40},
]


@pytest.mark.parametrize("course", COURSES, ids=range(len(COURSES)))
def test_both_have_one_curve(course, tmp_path):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=3e-3)
    scheduler = WarmupCosineLR(optimizer, **course)
    expected = []
    for _ in range(STEPS + 1):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()

    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 3e-3}},
        "scheduler": {"type": "WarmupCosineLR", "params": course},
        "model": {"layers": 1, "hidden": 8, "heads": 1, "sequence_length": 4},
        "run": {"steps": STEPS, "eval_batches": 1, "sample_bytes": 0},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    data = support.make_text(tmp_path / "data.txt", 4000)
    run = tmp_path / "run"
    words = [support.PENSTOCK, "train", file, "--data", data, "--run", run]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["lr"] for row in rows if "lr" in row] == pytest.approx(
        expected[1:], rel=1e-6, abs=0
    )
    assert expected[0] == 0
