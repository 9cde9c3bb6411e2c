"""A metrics file that never ends took all memory, and a pipe in place of a shard was waited for.

Each file that a command reads, as a link to /dev/zero and as a pipe that nobody writes to: it is
refused within seconds, by its name, within a gigabyte.
"""

import os
import resource
import subprocess
from pathlib import Path

import pytest
from support import PENSTOCK

BYTES = 1 << 30
SECONDS = 20
OF_RUNS = ("metrics.jsonl", "events.jsonl", "timeline.csv", "schedule.csv", "schedule.json")
PLAN = ("plan", "g.json", "--world=2", "--memory=1GB", "--flops=1e12", "--bandwidth=1e12")
RECORDING = next((Path(__file__).parents[1] / "fuzz/corpus/recording").glob("accepted_*"))
# The file that the command's last word names, or that lies in the folder which it names.
COMMANDS = {
    **{f"report {name}": (name, ["report", "."]) for name in OF_RUNS},
    "checkpoint show": ("manifest.json", ["checkpoint", "show", "."]),
    "checkpoint verify": ("manifest.json", ["checkpoint", "verify", "."]),
    "verify": ("s.csv", ["verify", "s.csv"]),
    "verify json": ("s.json", ["verify", "s.json"]),
    "config check": ("c.json", ["config", "check", "c.json"]),
    "train": ("c.json", ["train", "c.json"]),
    "hostfile": ("h", ["run", "--hostfile", "h", "script.py"]),
    "costs": ("k.json", ["simulate", "1f1b", "--ranks=2", "--microbatches=2", "--costs", "k.json"]),
    "layers": ("l.json", [*PLAN, "--layers", "l.json"]),
}


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("command", COMMANDS)
def test_are_refused_at_once(tmp_path, command, kind):
    name, words = COMMANDS[command]
    (tmp_path / "schedule.csv").write_text("0F0,0B0\n")
    if name.startswith("schedule."):
        (tmp_path / "timeline.csv").write_bytes(RECORDING.read_bytes())
    (tmp_path / "g.json").write_text('{"train_batch_size": 4}')
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    done = subprocess.run(
        [PENSTOCK, *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=limit,
    )
    assert done.returncode in (2, 3), done.stderr
    assert name in done.stdout + done.stderr
    assert kind in done.stdout + done.stderr
