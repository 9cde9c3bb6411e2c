"""`python -m penstock.swap -m MODULE`: processes that the module spawned had torch's own names."""

import subprocess
import sys

import pytest

SPAWNING = """
import multiprocessing
import sys
from torch.distributed.pipelining import ScheduleGPipe


def tell(path):
    import deepspeed

    with open(path, "w") as file:
        file.write(f"{ScheduleGPipe.__module__} {deepspeed.__name__}")


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    process = context.Process(target=tell, args=(sys.argv[2],))
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("words", [["script.py"], ["-m", "script"], ["-m", "package.script"]])
def test_they_have_penstocks(tmp_path, method, words):
    (tmp_path / "package").mkdir()
    for place in (tmp_path, tmp_path / "package"):
        (place / "script.py").write_text(SPAWNING)
    command = [sys.executable, "-m", "penstock.swap", *words, method, "told"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").read_text() == "penstock.pipelining.schedules penstock"
