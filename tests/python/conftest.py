"""Where the tests of the Python package find it: build/python, unless it is installed.

ctest sets PYTHONPATH.  Golden texts are those of the C++ tests.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# For what tests share: ranks.py, support.py.
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/process")]


@pytest.fixture
def one_rank(tmp_path):
    """A process group of this process alone; an engine of another file may have made it."""
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def golden_lines():
    """The lines of a recorded text, without comments and empty lines."""

    def lines(name):
        text = (ROOT / "tests/golden" / name).read_text(encoding="utf-8")
        return [line for line in text.split("\n") if line and not line.startswith("#")]

    return lines
