"""The recipes of docs/clusters.md, as far as one machine can run them.

Needs what each is for, and says so where that is missing: Slurm's daemons (PENSTOCK_SLURM: a folder
in which Debian's packages are unpacked), a Python with Ray (PENSTOCK_RAY_PYTHON), rclone.
Takes long: each begins a run twice.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest
from pathlib import Path

import support
from support import BUILD, PENSTOCK, ROOT, TORCH_PYTHON, ProcessTest, losses

RECIPES = ROOT / "examples" / "clusters"
RANKS = {"mesh": {"pipe": 2, "data": 1}}


class Recipe(ProcessTest):
    """Commands that find penstock and torchrun as a user's do."""

    def setUp(self) -> None:
        super().setUp()
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "penstock").symlink_to(PENSTOCK)
        torchrun = programs / "torchrun"
        torchrun.write_text(f'#!/bin/sh\nexec {TORCH_PYTHON} -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"

    def variables(self, **more: str) -> dict[str, str]:
        return self.environment(PATH=self.path, **more)

    def require_torch(self) -> None:
        if not TORCH_PYTHON:
            self.skipTest("no Python with torch; name one with PENSTOCK_TORCH_PYTHON")

    def steps(self, run: str) -> int:
        return len(support.raw_lines(self.folder / run))


class OfVariables(Recipe):
    """Two hosts that are this machine."""

    def same_as_by_hand(self, run: str) -> None:
        self.assert_code(self.train(self.folder / "tiny.json", "--run", "by_hand"), 0)
        self.assertEqual(losses(self.folder / run), losses(self.folder / "by_hand"))

    def on_two_hosts(self, words: list[str], variables: list[dict[str, str]]) -> None:
        hosts = [self.start(*words, environment=self.variables(**each)) for each in variables]
        for host in hosts:
            self.assert_code(host.wait(), 0)

    def test_kubeflow(self) -> None:
        self.require_torch()
        config = self.config(**RANKS)
        text = (RECIPES / "kubernetes.yaml").read_text()
        words = []
        for key in ("command", "args"):
            listed = re.search(rf"{key}: \[(.*)\]", text)
            assert listed is not None
            words += [each.strip().strip('"') for each in listed[1].split(",")]
        words = [each.replace("/data/gpt.json", str(config)) for each in words]
        words = [each.replace("/data/run", str(self.folder / "run")) for each in words]
        shared = {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "1",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(support.free_port()),
        }
        self.on_two_hosts(words, [{**shared, "PET_NODE_RANK": str(n)} for n in range(2)])
        self.same_as_by_hand("run")

    def test_skypilot(self) -> None:
        self.require_torch()
        self.config("gpt.json", **RANKS)
        self.config(**RANKS)
        _, _, text = (RECIPES / "sky.yaml").read_text().partition("run: |\n")
        script = textwrap.dedent(text).replace("29500", str(support.free_port()))
        shared = {
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "1",
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
            "RUN": str(self.folder / "run"),
        }
        hosts = [{**shared, "SKYPILOT_NODE_RANK": str(n)} for n in range(2)]
        self.on_two_hosts(["sh", "-c", script], hosts)
        self.same_as_by_hand("run")


class ObjectStorage(Recipe):
    def test_rclone(self) -> None:
        rclone = shutil.which("rclone", path=f"{self.path}:{os.environ.get('PENSTOCK_RCLONE', '')}")
        if rclone is None:
            self.skipTest("no rclone on this machine")
        page = (ROOT / "docs" / "clusters.md").read_text()
        line = re.search(r"rclone copy (\S+) remote:bucket/(\S+) (--include .*)", page)
        assert line is not None
        config = self.config()
        self.assert_code(self.train(config, "--run", "runs/a", "--checkpoint-every", 2), 0)
        checkpoints = self.folder / line[1]
        unfinished = checkpoints / "step-00000009.saving"
        unfinished.mkdir()
        (unfinished / "half").write_text("half")
        bucket = self.folder / "bucket"
        copy = f"{rclone} copy {checkpoints} {bucket} {line[3]}"
        for _ in range(2):
            self.assert_code(self.run_words("sh", "-c", copy, environment=self.variables()), 0)
        self.assertFalse((bucket / unfinished.name).exists())
        shutil.rmtree(self.folder / "runs")
        checkpoints.parent.mkdir(parents=True)
        back = f"{rclone} copy {bucket} {checkpoints}"
        self.assert_code(self.run_words("sh", "-c", back, environment=self.variables()), 0)
        self.assert_code(self.run_words(PENSTOCK, "checkpoint", "verify", checkpoints), 0)
        more = ("--run", "runs/a", "--resume", "auto", "--steps", 7)
        result = self.train(config, *more)
        self.assert_code(result, 0)
        self.assertIn("step 7/7", result.text)


SLURM = Path(os.environ.get("PENSTOCK_SLURM", "/"))
SLURM_CONF = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={first}
SlurmdPort={second}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
{plugins}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm(Recipe):
    """A cluster of one node, without services."""

    def setUp(self) -> None:
        super().setUp()
        folders = f"{SLURM}/usr/bin:{SLURM}/usr/sbin"

        def found(name: str) -> str | None:
            return shutil.which(f"{name}-wlm", path=folders) or shutil.which(name, path=folders)

        daemons = [found(name) for name in ("slurmctld", "slurmd", "slurmstepd")]
        if os.geteuid() != 0 or None in daemons or not shutil.which("sbatch", path=folders):
            self.skipTest("no Slurm on this machine, or not root; PENSTOCK_SLURM names its folder")
        self.path = f"{self.path}:{folders}"
        libraries = SLURM / "usr/lib/x86_64-linux-gnu"
        plugins = libraries / "slurm-wlm"
        state = self.folder / "slurm"
        state.mkdir()
        host = socket.gethostname().split(".")[0]
        (state / "slurm.conf").write_text(
            SLURM_CONF.format(
                host=host,
                first=support.free_port(),
                second=support.free_port(),
                folder=state,
                plugins=f"PluginDir={plugins}" if plugins.is_dir() else "",
            )
        )
        self.slurm = self.variables(SLURM_CONF=str(state / "slurm.conf"))
        if str(SLURM) != "/":
            self.slurm["LD_LIBRARY_PATH"] = f"{libraries}:{plugins}"
        control, node, step = daemons
        self.start(control, "-D", environment=self.slurm)
        self.start(node, "-D", "-N", host, "-d", step, environment=self.slurm)
        self.wait_for(lambda: "idle" in self.say("sinfo", "-h"), "an idle node")

    def say(self, *words: object) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            env=self.slurm,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def wait_for(self, condition, what: str, patience: float = 180.0) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            logs = "".join(path.read_text() for path in self.folder.glob("slurm-*.out"))
            self.assertLess(time.monotonic(), deadline, f"no {what}: {self.say('squeue')}{logs}")
            time.sleep(0.2)

    def test_a_job_that_is_stopped_goes_on_in_the_queue(self) -> None:
        config = self.config("gpt.json", **RANKS, run={"steps": 1200})
        size = ("--nodes=1", "--ntasks-per-node=2")
        job = self.say("sbatch", "--parsable", *size, RECIPES / "slurm.sh", config).strip()
        run = f"runs/gpt-{job}"
        self.wait_for(lambda: self.steps(run) >= 150, "step 150")
        self.say("scancel", "--signal=TERM", job)
        self.wait_for(
            lambda: "Requeue=1 Restarts=1" in self.say("scontrol", "show", "job", job),
            "second start",
        )
        before = self.steps(run)
        self.assertLess(before, 1200)

        def has_ended() -> bool:
            self.say("scontrol", "update", f"JobId={job}", "StartTime=now")  # Not in two minutes.
            return "COMPLETED" in self.say("scontrol", "show", "job", job)

        self.wait_for(has_ended, "end of the job")
        log = (self.folder / f"slurm-{job}.out").read_text()
        self.assertIn("step 1200/1200", log)
        self.assertIn("resum", log)
        self.assertEqual(log.count("step 1/1200"), 1, log)


RAY_PYTHON = os.environ.get("PENSTOCK_RAY_PYTHON", TORCH_PYTHON)


class Ray(Recipe):
    def setUp(self) -> None:
        super().setUp()
        if not RAY_PYTHON or subprocess.run([RAY_PYTHON, "-c", "import ray.train"]).returncode:
            self.skipTest("no Python with ray[train]; name one with PENSTOCK_RAY_PYTHON")
        folder = self.folder / "ray"  # The sockets' paths are short.
        self.ray = self.variables(
            RAY_TMPDIR=f"/tmp/ray-{os.getpid()}",
            RAY_USAGE_STATS_ENABLED="0",
            PYTHONPATH=str(BUILD / "python"),
            HOME=str(folder),
        )
        self.addCleanup(shutil.rmtree, self.ray["RAY_TMPDIR"], True)

    def ranks(self) -> list[int]:
        """Processes that are ranks of this test's run."""
        found = []
        for pid in support.all_pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"penstock-runtime") and bytes(self.folder) in b" ".join(words):
                found.append(pid)
        return found

    def test_a_run_comes_back_by_rays_restarts(self) -> None:
        config = self.config(**RANKS, run={"steps": 1200})
        script = RECIPES / "ray_train.py"
        started = self.start(RAY_PYTHON, script, config, 2, "run", environment=self.ray)
        started.directory = self.folder / "run"
        started.await_step(150, patience=240)
        ranks = self.ranks()
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGKILL)
        result = started.wait(300)
        self.assert_code(result, 0)
        starts = [
            json.loads(line)
            for line in (self.folder / "run" / "events.jsonl").read_text().splitlines()
        ]
        self.assertGreater(len([each for each in starts if each.get("event") == "start"]), 1)
        self.assertIn("step 1200/1200", result.text)

    def test_both_dialects_use_the_group_of_the_workers(self) -> None:
        script = Path(__file__).with_name("ray_dialects.py")
        result = self.start(RAY_PYTHON, script, environment=self.ray).wait(300)
        self.assert_code(result, 0)
        self.assertIn("both dialects: 2 ranks", result.text)


if __name__ == "__main__":
    sys.exit(unittest.main())
