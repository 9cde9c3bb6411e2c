"""Ranks for tests of the Python package: real processes, which meet at a file.

A test module is also the program of its ranks: they run its functions check_*(group) one after the
other, all ranks the same, each with a process group of its own, and write down how each ended.

    WORLD_SIZE = 2

    def check_something(group): ...

    test_check = ranks.tests_of(__file__, WORLD_SIZE)

    if __name__ == "__main__":
        ranks.main(globals())
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import warm

DEADLINE_S = 240  # Of all checks of a module together, on a machine that does other things.
GROUP_TIMEOUT = timedelta(seconds=30)
_LONG = "PENSTOCK_LONG_TESTS"  # Set for ranks that run all cases().
_SKIPPED = "skipped: "  # What follows is why.


def cases(of, quick):
    """The cases of a sweep: all in the long tier, and otherwise the first `quick` of them."""
    return list(of) if os.environ.get(_LONG) else list(of)[:quick]


def start(file, world_size, folder, *words, before=(), **more):
    """The processes of the ranks of a program, which gets RANK, WORLD_SIZE and STORE.

    before: words of a command that runs it.  more: environment variables.
    """
    processes = []
    for rank in range(world_size):
        variables = {"RANK": rank, "WORLD_SIZE": world_size, "STORE": Path(folder) / "store"}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        environment.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **more)
        # The programs of tests/regress find this module there, and support.py.
        here = Path(__file__).parent
        paths = [str(here), str(here.parent / "process"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with (Path(folder) / f"rank-{rank}.log").open("w") as log:
            if before:
                command = [*before, sys.executable, "-W", "ignore::UserWarning", str(file), *words]
                started = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            else:
                started = warm.start(file, words, environment, log, parent=rank)
        processes.append(started)
    return processes


def wait(processes, deadline_s):
    """Their exit codes; whoever has not ended by then is killed, and its code is None."""
    end = time.monotonic() + deadline_s
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(max(0, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None)
    for process in processes:
        process.kill()
        process.wait()
    return codes


def logs(folder):
    """What the ranks have printed."""
    return "\n".join(
        f"--- {path.name}\n{path.read_text()}" for path in sorted(Path(folder).glob("*.log"))
    )


def join_group():
    """Joins the default group; the rank of this process."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['STORE']}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=GROUP_TIMEOUT,
    )
    return rank


def main(names):
    """The program of one rank: runs the checks, those named on the command line or all."""
    import torch.distributed as dist

    rank = join_group()
    for name, check in list(names.items()):
        if not name.startswith("check_") or (sys.argv[1:] and name not in sys.argv[1:]):
            continue
        dist.barrier()
        group = dist.new_group(timeout=GROUP_TIMEOUT)
        start_s = time.monotonic()
        try:
            check(group)
            outcome = ""
        except pytest.skip.Exception as skipped:
            outcome = f"{_SKIPPED}{skipped.msg}"
        except BaseException:
            outcome = traceback.format_exc()
        took = time.monotonic() - start_s
        path = Path(os.environ["STORE"]).with_name(f"outcomes-{rank}.jsonl")
        with path.open("a") as file:
            file.write(json.dumps({"check": name, "outcome": outcome, "seconds": took}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def tests_of(file, world_size, is_long=False, has_imports=True):
    """A test for each check of a module; the ranks are started once, for all of them.

    is_long: they belong to the long tier (tests/CMakeLists.txt), with all cases(), because the
        module has others for the quick one.
    has_imports: the ranks are forks that have torch already; else they have imported nothing.
    """
    names = re.findall(r"^def (check_\w+)\(", Path(file).read_text(), re.MULTILINE)
    ran = {}

    @pytest.mark.parametrize("check", names)
    def test_check(check, tmp_path_factory):
        if not ran:
            folder = tmp_path_factory.mktemp("ranks")
            more = {_LONG: "1"} if is_long else {}
            before = () if has_imports else ("env",)
            ran["codes"] = wait(start(file, world_size, folder, before=before, **more), DEADLINE_S)
            ran["outcomes"] = _outcomes(folder, world_size)
            ran["logs"] = logs(folder)
        outcomes = [ran["outcomes"].get((check, rank)) for rank in range(world_size)]
        if outcomes and all(each and each.startswith(_SKIPPED) for each in outcomes):
            pytest.skip(outcomes[0].removeprefix(_SKIPPED))
        failures = [f"rank {rank}:\n{each}" for rank, each in enumerate(outcomes) if each]
        if None in outcomes:
            rank = outcomes.index(None)
            failures += [f"rank {rank} has not come that far: {ran['codes']}\n{ran['logs']}"]
        assert not failures, "\n".join(failures)
        if check == names[-1]:
            assert ran["codes"] == [0] * world_size, ran["logs"]

    return pytest.mark.long(test_check) if is_long else test_check


def _outcomes(folder, world_size):
    found = {}
    for rank in range(world_size):
        path = Path(folder) / f"outcomes-{rank}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            found[record["check"], rank] = record["outcome"]
    return found
