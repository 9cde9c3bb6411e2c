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
    assert torch.equal(pipe(x), model(x))
    print(__name__, sys.argv[1:], pipe.num_stages, pipeline.__module__)
    print(pipelining.__spec__.name, TensorChunkSpec.__module__, torch.distributed.pipelining.Pipe)

if __name__ == "__main__":
    main()
"""

SPAWNING = """
import torch
import torch.multiprocessing as mp
from torch.distributed.pipelining import TensorChunkSpec

def rank(number, folder):
    from torch.distributed.pipelining.microbatch import merge_chunks
    open(f"{folder}/{number}", "w").write(f"{TensorChunkSpec.__module__} {merge_chunks.__module__}")

if __name__ == "__main__":
    import sys
    mp.spawn(rank, (sys.argv[1],), nprocs=2)
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
    done = swap(SPAWNING, tmp_path)
    assert done.returncode == 0, done.stderr
    swapped = "penstock.pipelining.microbatch"
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == [f"{swapped} {swapped}"] * 2


def test_deepspeed_is_swapped_as_far_as_penstock_has_it(swap):
    done = swap(DEEPSPEED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "penstock.pipe.schedule [LoadMicroBatch(buffer_id=0)]\n" or (
        done.stdout.startswith("penstock.pipe.schedule [")
    )
    done = swap("from deepspeed.runtime.pipe.module import PipelineModule")
    assert done.returncode == 1
    assert "deepspeed.runtime.pipe.module is not in penstock" in done.stderr
    assert "it has deepspeed.runtime.pipe.schedule" in done.stderr


def test_what_penstock_lacks_is_told(swap):
    done = swap("import torch.distributed.pipelining._backward")
    assert "torch.distributed.pipelining._backward is not in penstock" in done.stderr


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
