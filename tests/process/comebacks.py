"""Runs that are disturbed and come back, beside the same run undisturbed.

checkpoints_test.py does one of each kind, comeback_soak.py many.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import support
from support import PENSTOCK, ProcessTest

TIMES = ("tokens_per_second", "step_time_seconds")


def course_of(run: Path) -> list[dict[str, object]]:
    """The lines of metrics.jsonl, without what a clock has written."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def events_of(run: Path, kind: str = "") -> list[dict[str, object]]:
    """The lines of events.jsonl, of that kind.

    "": all but changes of costs, which other work of the machine makes at any time.
    """
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    if not kind:
        return [event for event in events if event["event"] != "costs_changed"]
    return [event for event in events if event["event"] == kind]


def kinds_of(run: Path) -> list[str]:
    return [event["event"] for event in events_of(run)]


def places(refusal: str) -> list[str]:
    """The places of a fault that are no instructions, which a refusal of another one lists."""
    return re.findall(r"places: (.*)", refusal)[0].split(", ")


class ComebackTest(ProcessTest):
    def training(self, name: str = "tiny.json", **changes: object) -> Path:
        """A run that saves checkpoints and takes a few seconds."""
        values = support.merged(
            {
                "run": {"steps": 200, "sample_bytes": 0},
                "checkpoint": {"save_interval": 40},
                "steps_per_print": 20,
            },
            changes,
        )
        return self.config(name, **values)

    def undisturbed(self, config: Path, name: str = "whole") -> Path:
        result = self.train(config, "--run", name)
        self.assert_code(result, 0)
        return self.folder / name

    def await_checkpoint(self, run: support.Started) -> None:
        """Until there is one of the run."""
        deadline = time.monotonic() + support.PATIENCE
        while not any((run.directory / "checkpoints").glob("step-????????")):
            self.assertLess(time.monotonic(), deadline, "no checkpoint")
            time.sleep(0.01)

    def checkpoint(self, *words: object) -> support.Result:
        return self.run_words(PENSTOCK, "checkpoint", *words)

    def assert_same(self, whole: Path, run: Path) -> None:
        """Bit for bit: every step, and parameters and states after the last one."""
        self.assertEqual(course_of(run), course_of(whole))
        result = self.checkpoint("diff", whole, run)
        self.assert_code(result, 0)
        self.assertRegex(result.out, r"\d+ tensors are equal, 0 are not")

    def assert_came_back(self, text: str, times: int = 1) -> None:
        self.assertEqual(len(re.findall("penstock: starting the run again", text)), times, text)
        self.assertIn("penstock: resumed after step", text)
