"""Ranks told the ranks of other hosts that they are at 127.0.0.1.

Ranks of `penstock train` did so unless --host was given, those of Python where MASTER_ADDR was not
set, was IPv6, or was the host's own name, which Debian gives the address 127.0.1.1.  Here two
network namespaces are two hosts, with one rank each; nobody is told an address but the master's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from hosts import MASTER, NAME, PORT, Cable, UnavailableError
from support import PENSTOCK, ProcessTest, losses

STEPS = 5


def made_hosts(cleanup) -> Cable:
    two = Cable()
    cleanup(two.remove)
    try:
        two.make()
    except UnavailableError as missing:
        pytest.skip(str(missing))
    return two


class Program(ProcessTest):
    def test_ranks_find_their_addresses(self) -> None:
        config = self.config(mesh={"pipe": 2, "data": 1}, run={"steps": STEPS})
        self.assert_code(self.train(config, "--run", "own"), 0)
        expected = losses(self.folder / "own")
        hosts = made_hosts(self.addCleanup)
        for transport, master in (("tcp", MASTER), ("gloo", MASTER), ("auto", NAME)):
            with self.subTest(transport=transport, master=master):
                run = f"{transport}-{master}"
                started = []
                for rank in range(2):
                    variables = self.environment(
                        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=master, MASTER_PORT=PORT
                    )
                    words = (PENSTOCK, "train", config, "--run", run)
                    transports = ("--set", f"launch.transport={transport}")
                    started.append(
                        self.start(*hosts.on(rank), *words, *transports, environment=variables)
                    )
                for each in started:
                    self.assert_code(each.wait(60), 0)
                self.assertEqual(losses(self.folder / run), expected)


def check_python(group):
    import torch

    from penstock.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(STEPS):
        found = []
        if rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            schedule.step(target=torch.zeros(4, 4), losses=found)
        assert len(found) == rank * 2


@pytest.mark.parametrize("master", [MASTER, NAME, ""])
def test_python(master, tmp_path, request):
    """`master` is MASTER_ADDR, or empty: the ranks meet at a file."""
    hosts = made_hosts(request.addfinalizer)
    processes = []
    for rank in range(2):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "STORE": str(tmp_path / "store"),
            "GLOO_SOCKET_IFNAME": hosts.ends[rank],  # For torch's own group.
            "PYTHONPATH": os.pathsep.join([str(Path(ranks.__file__).parent), *sys.path]),
        }
        environment.pop("MASTER_ADDR", None)
        if master:
            environment.update(MASTER_ADDR=master, MASTER_PORT=PORT)
        with (tmp_path / f"rank-{rank}.log").open("w") as log:
            words = [*hosts.on(rank), sys.executable, __file__]
            processes.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
    assert ranks.wait(processes, 100) == [0, 0], ranks.logs(tmp_path)


def main():
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    method = "env://" if "MASTER_ADDR" in os.environ else f"file://{os.environ['STORE']}"
    dist.init_process_group(
        "gloo",
        init_method=method,
        rank=int(os.environ["RANK"]),
        world_size=2,
        timeout=ranks.GROUP_TIMEOUT,
    )
    check_python(None)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
