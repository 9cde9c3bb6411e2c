"""A script for torch.distributed.pipelining, with its import lines changed, under each launcher.

It prints a line of figures per rank.  The same script on torch itself has to print the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, sys, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

def train(rank, method):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    stages = [PipelineStage(model[i], i, 4, torch.device("cpu")) for i in (rank, rank + 2)]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=torch.nn.MSELoss())
    optimizer = torch.optim.SGD([*model[rank].parameters(), *model[rank + 2].parameters()], lr=0.1)
    total = 0.0
    for _ in range(5):
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        total += sum(loss.item() for loss in losses)
        optimizer.step()
        optimizer.zero_grad()
    norm = sum(parameter.norm().item() for parameter in model[rank].parameters())
    sys.stdout.write(f"rank {rank}: {total:.5f} {norm:.5f}\\n")
    sys.stdout.flush()
    dist.destroy_process_group()

if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(train, (f"file://{folder}/store",), nprocs=2)
"""


def run(words, script, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(script)
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words, str(path)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"rank \d: .*", done.stdout))


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory):
    lines = run([], SCRIPT, tmp_path_factory.mktemp("torch"))
    assert len(lines) == 2
    return lines


@pytest.mark.parametrize(
    "words",
    [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]],
    ids=["spawn", "torchrun"],
)
def test_same_figures(words, of_torch, tmp_path):
    changed = SCRIPT.replace("from torch.distributed.pipelining", "from penstock.pipelining")
    assert changed.count("penstock") == 2
    assert run(words, changed, tmp_path) == of_torch


@pytest.mark.parametrize("program", ["ZBVZeroBubble", "mine.csv"])
def test_example(program, tmp_path):
    if program == "mine.csv":
        program = str(tmp_path / program)
        order = penstock.schedule.generate("zb_h1", ranks=2, microbatches=8)
        Path(program).write_text(order.to_csv())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "examples/multi_mlp.py"), program],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert "gradients as in one process" in done.stdout
