"""`penstock run` by ssh: two network namespaces with an sshd in each, which stand for two hosts.

Needs root, ip, ssh and sshd, and says so where they are not.  A script of DeepSpeed's runs where
PENSTOCK_TORCH_PYTHON and the Python package of the build are.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

import hosts
import support
from support import BUILD, PENSTOCK, ProcessTest, losses

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin") or ""
HEARTBEAT_SECONDS = 3
IMPORTS_SECONDS = 300.0  # Far beyond what an import of torch takes.
SCRIPT = """import argparse, os, signal, time
import deepspeed, torch
import torch.distributed as dist
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
parser.add_argument("--steps", type=int)
args = parser.parse_args()
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
engine, *_ = deepspeed.initialize(args=args, model=model)
assert args.local_rank == int(os.environ["LOCAL_RANK"]) == 0
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(args.steps):
    x = torch.randn(4, 4, generator=generator)
    loss = (engine(x) - x.sum(1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "step", step, flush=True)
    time.sleep(0.02)
"""
CONFIG = """{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
  "optimizer": {"type": "Adam", "params": {"lr": 0.01}}}"""


class SshTest(ProcessTest):
    """Two hosts, called by their addresses, on which every folder is the same."""

    def setUp(self) -> None:
        super().setUp()
        if not SSHD or not shutil.which("ssh"):
            self.skipTest("no ssh and sshd on this machine")
        self.two = hosts.Cable()
        self.started: list[support.Started] = []
        self.addCleanup(self.reap)
        self.addCleanup(self.two.remove)
        try:
            self.two.make()
        except hosts.UnavailableError as missing:
            self.skipTest(str(missing))
        self.start_daemons()
        text = f"{hosts.MASTER} slots=2\n{hosts.OTHER} slots=2\n"
        (self.folder / "hosts").write_text(text)

    def reap(self) -> None:
        """What was started on the hosts, which are removed by now."""
        for each in self.started:
            each.process.wait(10)

    def key(self, name: str) -> Path:
        path = self.folder / name
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(words, check=True)
        return path

    def start_daemons(self) -> None:
        host_key, own = self.key("host_key"), self.key("own_key")
        Path("/run/sshd").mkdir(exist_ok=True)
        common = (
            f"HostKey {host_key}\nAuthorizedKeysFile {own}.pub\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\nPidFile none\n"
        )
        for host, address in enumerate((hosts.MASTER, hosts.OTHER)):
            config = self.folder / f"sshd-{host}"
            config.write_text(common + f"ListenAddress {address}\nPort 2222\n")
            self.started.append(self.start(*self.two.on(host), SSHD, "-D", "-e", "-f", config))
        (self.folder / "client").write_text(
            f"IdentityFile {own}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
            "LogLevel ERROR\n"
        )
        self.await_daemons()
        self.daemons = [set(self.two.pids(name)) for name in self.two.names]

    def await_daemons(self) -> None:
        deadline = time.monotonic() + 20
        for address in (hosts.MASTER, hosts.OTHER):
            words = [*self.two.on(0), "ssh", "-F", str(self.folder / "client"), "-p", "2222"]
            while True:
                done = subprocess.run(
                    [*words, address, "true"], capture_output=True, text=True, check=False
                )
                if done.returncode == 0:
                    break
                self.assertLess(time.monotonic(), deadline, done.stderr)
                time.sleep(0.1)

    def start_run(self, *words: object, **variables: str) -> support.Started:
        started = self.start(
            *self.two.on(0),
            *(PENSTOCK, "run", "-H", "hosts", "--ssh_port", 2222),
            *("--launcher_args", f"-F {self.folder / 'client'}"),
            *("--heartbeat", HEARTBEAT_SECONDS, *words),
            environment=self.environment(HOME=str(self.folder), **variables),
        )
        self.started.append(started)
        return started

    def others(self) -> list[int]:
        """The processes on both hosts that are not of the daemons."""
        pids = zip(self.two.names, self.daemons, strict=True)
        found = [pid for name, own in pids for pid in self.two.pids(name) if pid not in own]
        return [pid for pid in found if support.stat_of(pid)[:1] not in ([], ["Z"])]

    def assert_hosts_are_left_alone(self, within: float) -> None:
        deadline = time.monotonic() + within
        while (left := self.others()) and time.monotonic() < deadline:
            time.sleep(0.05)
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        self.assertEqual(left, [], f"processes are left: {names}")

    def ranks(self) -> dict[str, int]:
        """Processes of ranks, as this process knows them, which sees all namespaces."""
        pids = self.others()
        return {found["RANK"]: p for p in pids if "RANK" in (found := support.environment_of(p))}

    def rank_pid(self, rank: int) -> int:
        return self.ranks()[str(rank)]

    def start_training(self, run: str, steps: int = 100_000) -> support.Started:
        tiny = self.config(run={"steps": steps})
        started = self.start_run("--", PENSTOCK, "train", tiny, "--run", run)
        started.directory = self.folder / run
        return started


class PenstockTrain(SshTest):
    def test_two_hosts_with_two_ranks_have_the_losses_of_one_host(self) -> None:
        self.assert_code(self.start_training("hosts-run", steps=5).wait(), 0)
        self.assert_code(self.train(self.config(), "--run", "own"), 0)
        self.assertEqual(losses(self.folder / "hosts-run"), losses(self.folder / "own"))
        self.assert_hosts_are_left_alone(within=2)

    def test_a_rank_that_is_killed_is_named_with_its_host(self) -> None:
        started = self.start_training("out")
        started.await_step(2)
        time.sleep(1.5)  # A rank tells of its step once a second.
        os.kill(self.rank_pid(3), signal.SIGKILL)
        result = started.wait()
        self.assert_code(result, 4)
        (cause,) = support.root_causes(result.err)
        self.assertIn(f"rank 3 on {hosts.OTHER} was killed by SIGKILL; last seen at step", cause)
        self.assert_hosts_are_left_alone(within=2)

    def test_a_killed_launcher_leaves_nothing(self) -> None:
        started = self.start_training("out")
        started.await_step(2)
        (launcher,) = support.children(started.pid)  # Of unshare.
        os.kill(launcher, signal.SIGKILL)
        self.assert_hosts_are_left_alone(within=10)
        started.process.wait(10)

    def test_a_cable_that_is_pulled_ends_the_ranks_on_both_hosts(self) -> None:
        started = self.start_training("out")
        started.await_step(2)
        self.two.set_up(1, False)
        result = started.wait(60)
        self.assertIn(result.code, (4, 5), result.text)
        (cause,) = support.root_causes(result.err)
        self.assertIn(hosts.OTHER, result.err)
        deadline = time.monotonic() + 3 * HEARTBEAT_SECONDS
        while (left := self.ranks()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(left, {}, cause)


class DeepSpeedScript(SshTest):
    def setUp(self) -> None:
        super().setUp()
        if not support.TORCH_PYTHON or not (BUILD / "python" / "penstock").is_dir():
            self.skipTest("no Python with torch and penstock: PENSTOCK_TORCH_PYTHON names one")
        (self.folder / "hosts").write_text(f"{hosts.MASTER} slots=1\n{hosts.OTHER} slots=1\n")
        (self.folder / "train.py").write_text(SCRIPT)
        (self.folder / "ds.json").write_text(CONFIG)

    def start_script(self, steps: int) -> support.Started:
        return self.start_run(
            *("--swap", "train.py", "--deepspeed_config", "ds.json", "--steps", steps),
            PENSTOCK_PYTHON=support.TORCH_PYTHON,
            PYTHONPATH=str(BUILD / "python"),
        )

    def test_two_hosts_train_it(self) -> None:
        result = self.start_script(5).wait(IMPORTS_SECONDS)
        self.assert_code(result, 0)
        for rank in range(2):
            lines = [line for line in result.out.splitlines() if f"rank {rank} of 2 step" in line]
            self.assertEqual(len(lines), 5, result.text)
        self.assert_hosts_are_left_alone(within=2)

    def test_a_rank_that_is_killed_ends_both_hosts(self) -> None:
        started = self.start_script(100_000)
        started.await_text("rank 1 of 2 step 2", patience=IMPORTS_SECONDS)
        os.kill(self.rank_pid(1), signal.SIGKILL)
        result = started.wait()
        self.assert_code(result, 4)
        causes = [line for line in support.root_causes(result.err) if " on " in line]
        self.assertEqual(causes, [f"rank 1 on {hosts.OTHER} was killed by SIGKILL"], result.err)
        self.assert_hosts_are_left_alone(within=2)


if __name__ == "__main__":
    unittest.main()
