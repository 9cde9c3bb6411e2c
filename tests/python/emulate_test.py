"""penstock.emulate: a model of one's own on virtual devices, in a process of its own.

The first call gives the process devices of CUDA's, which other tests must not see.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PENSTOCK = Path(os.environ["PENSTOCK_BUILD"]) / "bin" / "penstock"
WORDS, LENGTH, WIDTH, SAMPLES, MICROBATCHES = 256, 32, 16, 8, 4

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="the virtual device needs a torch for CPUs"
)

# The byte MLP of configurations, as a user would write it.
MODEL = f"""
import torch
from torch import nn
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec
import penstock

WORDS, LENGTH, WIDTH, SAMPLES, MICROBATCHES = {WORDS}, {LENGTH}, {WIDTH}, {SAMPLES}, {MICROBATCHES}

class Linear(nn.Linear):  # Of three dimensions, as torch's in C++ computes it.
    def forward(self, x):
        y = x @ self.weight.t()
        return y if self.bias is None else y.add_(self.bias)

class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
    def forward(self, tokens):
        # As g++ has them: the second summand first, and both until their sum is returned.
        places = self.places(torch.arange(LENGTH, device=tokens.device))
        words = self.words(tokens)
        return words + places

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)
    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.words = nn.LayerNorm(WIDTH), Linear(WIDTH, WORDS, bias=False)
    def forward(self, x):
        return self.words(self.norm(x))

def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

def emulate(*between, config=None, **more):
    text = torch.zeros(SAMPLES, LENGTH, dtype=torch.long)
    layers = [LayerSpec(Embedding), *between, LayerSpec(Block), LayerSpec(Head)]
    config = {{"gradient_accumulation_steps": MICROBATCHES, **(config or {{}})}}
    return penstock.emulate(layers, loss, text, text, config, **more)

def refused(error, *between, **more):
    try:
        emulate(*between, **more)
    except error as found:
        return str(found)
    raise AssertionError("it was not refused")
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", MODEL + program],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


COUNTS = (
    *("kernels", "scalars", "copies_out", "bytes_out", "copies_in", "bytes_in", "messages"),
    *("message_bytes", "peak_bytes"),
)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("mesh", [{}, {"pipe": 2}, {"pipe": 2, "data": 2}])
def test_a_model_of_ones_own_takes_what_the_command_tells(tmp_path, mesh, stage):
    """Stage 3: pages come in the midst of Python's code, from ranks that need the GIL as well."""
    config = {"mesh": mesh, "zero_optimization": {"stage": stage}}
    program = f"""
import json
report = emulate(LayerSpec(Block), config={config!r})
ranks = [{{name: getattr(rank, name) for name in {COUNTS!r}}} for rank in report.ranks]
told = {{"step_s": report.step_s, "share_of_peak": report.share_of_peak, "ranks": ranks,
        "samples": report.samples}}
print(json.dumps(told))
"""
    found = json.loads(run(program))
    samples = SAMPLES * mesh.get("data", 1)
    model = {"type": "mlp", "layers": 2, "hidden": WIDTH, "sequence_length": LENGTH, "dropout": 0.0}
    (tmp_path / "mlp.json").write_text(
        json.dumps(
            {**config, "model": model, "train_batch_size": samples,
             "gradient_accumulation_steps": MICROBATCHES}
        )
    )  # fmt: skip
    done = subprocess.run([PENSTOCK, "emulate", "mlp.json", "--json"], cwd=tmp_path, check=True,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    told = json.loads(done.stdout)
    assert found["samples"] == samples
    assert [{name: rank[name] for name in COUNTS} for rank in told["ranks"]] == found["ranks"]
    assert found["step_s"] == pytest.approx(told["step_s"], rel=1e-4)
    assert found["share_of_peak"] == pytest.approx(told["share_of_peak"], rel=1e-4)


def test_calls_of_a_process_know_nothing_of_each_other():
    run("""
first = emulate(LayerSpec(Block))
slow = emulate(LayerSpec(Block), device="a100-40", config={"mesh": {"data": 4}})
again = emulate(LayerSpec(Block))
assert len(slow.ranks) == 4 and slow.samples == 4 * SAMPLES
assert first.step_s == again.step_s and first.ranks[0].kernels == again.ranks[0].kernels
assert first.samples_per_s == first.samples / first.step_s
assert sum(first.ranks[0].live_at_peak.values()) <= first.ranks[0].peak_bytes
""")


def test_a_value_that_a_layer_reads_is_an_error_with_its_place():
    run("""
def scaling(x):
    return x / x.abs().max().item()
def listing(x):
    return x * len(x.detach().flatten().tolist())
told = refused(RuntimeError, scaling)
assert "reads values of a tensor in the host" in told and "value_read" in told, told
assert "aten::copy_ reads values" in refused(RuntimeError, listing)
assert emulate(scaling, value_read=2).ranks[0].scalars == MICROBATCHES
""")


def test_report_draws_one_more_step(tmp_path):
    run(f"""
folder = {str(tmp_path / "made" / "emulated")!r}
one = emulate(LayerSpec(Block), config={{"mesh": {{"pipe": 2}}}})
two = emulate(LayerSpec(Block), config={{"mesh": {{"pipe": 2}}}}, output=folder)
assert one.step_s == two.step_s and one.ranks[0].kernels == two.ranks[0].kernels
told = refused(penstock.ConfigError, output="/dev/null/emulated")
assert "cannot make the folder /dev/null/emulated: Not a directory" in told, told
""")
    done = subprocess.run([PENSTOCK, "report", "made/emulated"], cwd=tmp_path, check=True,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert "1f1b(ranks=2, stages=2, microbatches=4)" in done.stdout


def test_ctrl_c_ends_it():
    program = """
def long(x):
    print("began", flush=True)
    for _ in range(10**9):
        x = x + 1
emulate(long, config={"mesh": {"pipe": 2}})
"""
    with subprocess.Popen(
        [sys.executable, "-c", MODEL + program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "began\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert said.splitlines()[-1] == "KeyboardInterrupt", said


def test_a_layer_with_collectives_of_its_own_is_refused():
    run("""
import torch.distributed as dist
def summing(x):
    dist.all_reduce(x)
    return x
told = refused(penstock.Error, summing)
assert "calls torch.distributed" in told and "no collectives of its own" in told, told
""")


def test_layers_of_all_kinds():
    """Tied ones, modules, functions, made without memory, and those that compute again."""
    run("""
from torch.utils.checkpoint import checkpoint
halves = {"mesh": {"pipe": 2}, "pipeline": {"partition": "bounds", "bounds": [0, 2, 5]}}
tied = [TiedLayerSpec("block", Block), TiedLayerSpec("block", Block, forward_fn=lambda m, x: m(x))]
one, two = emulate(LayerSpec(Block)), emulate(*tied, config=halves)
loose = emulate(LayerSpec(Block), LayerSpec(Block), config=halves)
assert all(  # Sums of gradients go through the host.
    tie.bytes_out > none.bytes_out + 4 * 2 * WIDTH * WIDTH
    for tie, none in zip(two.ranks, loose.ranks, strict=True)
)
assert len(emulate(Block(), config={"mesh": {"data": 2}}).ranks) == 2  # Each has a copy.
module, function = emulate(Block()), emulate(Block(), lambda x: x)
assert module.ranks[0].kernels == function.ranks[0].kernels == one.ranks[0].kernels
with torch.device("meta"):
    bare = Block()
assert emulate(bare).ranks[0].kernels == one.ranks[0].kernels
class Again(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)
assert emulate(LayerSpec(Again)).ranks[0].kernels > one.ranks[0].kernels
class Reentrant(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)
assert emulate(LayerSpec(Reentrant)).ranks[0].kernels > one.ranks[0].kernels
pair = emulate(lambda x: (x, x), lambda both: both[0] + both[1], config={"bf16": {"enabled": True}})
assert pair.ranks[0].kernels > 0
""")


def test_what_does_not_fit_is_refused():
    run("""
assert "is not for a step" in refused(penstock.ConfigError, config={"model": {"layers": 2}})
told = refused(penstock.ConfigError, config={"train_batch_size": 3 * MICROBATCHES})
assert "the inputs have 8 samples" in told, told
assert "no such device" in refused(penstock.ConfigError, device="h100-sxn")
assert "must be a LayerSpec" in refused(penstock.ConfigError, 3)
assert "a layer returned 'text'" in refused(TypeError, lambda x: "text")
assert "broken" in refused(ZeroDivisionError, lambda x: (_ for _ in ()).throw(
    ZeroDivisionError("broken")), config={"mesh": {"pipe": 2}})
""")
