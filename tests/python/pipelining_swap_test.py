"""python -m penstock.swap: scripts run on penstock as they stand."""

import subprocess
import sys

import pytest

TRACED = """
import sys
import torch
import torch.distributed.pipelining as pipelining
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from torch.distributed.pipelining._IR import annotate_split_points

def main():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    x = torch.randn(3, 4)
    pipe = pipeline(model, (x,), split_spec={"1": SplitPoint.BEGINNING})
    assert torch.equal(*pipe(x), model(x))
    print(__name__, sys.argv[1:], pipe.num_stages, pipeline.__module__)
    print(pipelining.__spec__.name, TensorChunkSpec.__module__, torch.distributed.pipelining.Pipe)

if __name__ == "__main__":
    main()
"""

TRAINING = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

def train(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(2)]
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 3, loss_fn=torch.nn.MSELoss())
    if rank == 0:
        schedule.step(x)
    else:
        losses = []
        schedule.step(target=y, losses=losses)
        whole = torch.nn.functional.mse_loss(layers[1](layers[0](x)), y)
        assert torch.isclose(sum(losses) / 3, whole)
    open(f"{folder}/{rank}", "w").write(type(schedule).__module__)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1],), nprocs=2)
"""

DEEPSPEED = """
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.schedule import TrainSchedule
import deepspeed.runtime.pipe.schedule as again

assert again is schedule
print(TrainSchedule.__module__, list(TrainSchedule(2, 2, 0).steps())[0])
"""


@pytest.fixture
def swap(tmp_path):
    def run(text, *arguments, module=False):
        script = tmp_path / "script.py"
        script.write_text(text)
        words = ["-m", "script"] if module else [script]
        return subprocess.run(
            [sys.executable, "-m", "penstock.swap", *words, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )

    return run


@pytest.mark.parametrize("module", [False, True])
def test_imports_are_swapped(swap, module):
    done = swap(TRACED, "--lr", "0.1", module=module)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "__main__ ['--lr', '0.1'] 2 penstock.pipelining._tracer"
    assert second == (
        "penstock.pipelining penstock.pipelining.microbatch "
        "<class 'penstock.pipelining._tracer.Pipe'>"
    )


def test_spawned_processes_are_swapped_too(swap, tmp_path):
    done = swap(TRAINING, tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in ("0", "1"):
        assert (tmp_path / rank).read_text() == "penstock.pipelining.schedules"


DEEPSPEED_ASKED_FOR = """
import importlib.metadata
from importlib.util import find_spec

assert find_spec("deepspeed") is not None
print(importlib.metadata.version("deepspeed"), importlib.metadata.metadata("DeepSpeed")["Name"])
print("deepspeed" in importlib.metadata.packages_distributions())
"""


def test_libraries_that_ask_for_the_package_find_it(swap):
    done = swap(DEEPSPEED_ASKED_FOR)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0.19.8 deepspeed\nTrue\n"


DEEPSPEED_TRAINING = """
import argparse
import torch
import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
from deepspeed.utils import RepeatingLoader

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args(["--deepspeed", "--deepspeed_config", "config.json"])
with open("config.json", "w") as file:
    file.write('{"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}')
deepspeed.init_distributed(dist_backend="gloo")
model = PipelineModule(
    [LayerSpec(torch.nn.Linear, 4, 4), torch.relu, LayerSpec(torch.nn.Linear, 4, 4)],
    topology=PipeDataParallelTopology(num_pp=1, num_dp=1),
    loss_fn=torch.nn.MSELoss(),
)
engine, _, _, _ = deepspeed.initialize(
    args=args, model=model, model_parameters=[p for p in model.parameters() if p.requires_grad]
)
batch = torch.randn(4, 4), torch.randn(4, 4)
data = iter(RepeatingLoader([batch]))
losses = [engine.train_batch(data_iter=data).item() for _ in range(3)]
assert losses[2] < losses[1] < losses[0]
print(isinstance(engine, PipelineEngine), type(engine).__module__)
"""


DEEPSPEED_ZERO = """
import torch
import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.zero import GatheredParameters, Init

config = {
    "train_batch_size": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": get_accelerator().is_bf16_supported()},
}
with Init(config_dict_or_path=config):
    model = torch.nn.Linear(4, 1)
engine, _, _, _ = deepspeed.initialize(model=model, config=config)
losses = []
for _ in range(3):
    loss = engine(torch.ones(4).bfloat16()).square()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
with deepspeed.zero.GatheredParameters(model.weight):
    assert model.weight.ds_status == ZeroParamStatus.AVAILABLE
print(type(engine).__module__)
"""


def test_deepspeed_zero_is_swapped(swap):
    done = swap(DEEPSPEED_ZERO)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "penstock.zero.engine\n"


def test_deepspeed_is_swapped(swap):
    done = swap(DEEPSPEED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "penstock.pipe.schedule [LoadMicroBatch(buffer_id=0)]\n" or (
        done.stdout.startswith("penstock.pipe.schedule [")
    )
    done = swap(DEEPSPEED_TRAINING)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True penstock.pipe.engine\n"
    done = swap("from deepspeed.runtime.pipe.p2p import send")
    assert done.returncode == 1
    assert "deepspeed.runtime.pipe.p2p is not in penstock" in done.stderr
    assert "it has deepspeed" in done.stderr and "deepspeed.runtime.pipe.engine" in done.stderr


def test_what_penstock_lacks_is_told(swap):
    done = swap("import torch.distributed.pipelining._lowering")
    assert "torch.distributed.pipelining._lowering is not in penstock" in done.stderr


def test_errors_are_those_of_the_script(swap):
    done = swap("import torch.distributed.pipelining\nraise KeyError('mine')")
    assert done.returncode == 1
    assert 'script.py", line 2' in done.stderr
    assert swap("import sys; sys.exit(7)").returncode == 7


def test_usage():
    for arguments, message in (
        ([], "usage: python -m penstock.swap SCRIPT"),
        (["none.py"], "penstock.swap: none.py: no such file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.swap", *arguments], capture_output=True, text=True
        )
        assert (done.returncode, message in done.stderr) == (1, True)
