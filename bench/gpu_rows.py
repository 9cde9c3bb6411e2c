"""What the parts of bench/gpu.py share: rows, and commands that end or say why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
KIT = ROOT / ".gpu-kit"
PYTHON = os.environ.get("PENSTOCK_PYTHON", sys.executable)
NEEDS_DEVICE = "needs a CUDA device"
# Far above what a step on a device takes; the slowest is that of width 8192 in float.
RUN_LIMIT_S = 90.0


@dataclass
class Row:
    """One thing that was asked, and its answer: `value` where it was had, `why` where not."""

    part: str
    what: str
    value: object = None
    why: str = ""

    def cell(self) -> str:
        if self.why:
            return self.why
        if isinstance(self.value, dict):
            return ", ".join(f"{name} {figure}" for name, figure in self.value.items())
        return str(self.value)


class CommandError(Exception):
    """A command that failed or took too long; the text is for the table."""


def call(words: list[str], limit_s: float, **variables: str) -> str:
    """The output of a command; its last line is the reason when it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in words], cwd=ROOT, env={**os.environ, **variables},
            capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CommandError(f"not over after {limit_s:.0f} s") from None
    except OSError as error:
        raise CommandError(str(error)) from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"]
        raise CommandError(f"exit code {done.returncode}: {lines[-1][:200]}")
    return done.stdout


def last_json(text: str) -> dict:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise CommandError("it printed no result")
    return json.loads(lines[-1])


@dataclass
class Machine:
    devices: int
    facts: dict

    @staticmethod
    def ask() -> Machine:
        program = (
            "import json, torch; n = torch.cuda.device_count();"
            "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda,"
            " 'devices': [torch.cuda.get_device_name(i) for i in range(n)]}))"
        )
        facts = last_json(call([PYTHON, "-c", program], 120))
        return Machine(len(facts["devices"]), {**facts, "cores": os.cpu_count()})
