#!/usr/bin/env python3
"""What `penstock plan` predicts of 12 layouts of 2 and 4 ranks, against what they take.

Two models: a GPT of equal blocks, and an MLP whose head is heavier than its blocks.  Predictions
are made before the layouts run, from four runs of their own, each as often as there are rounds: of
what `penstock report --match-step` fits, forwards and backwards from 1F1B on two stages, the halves
of a backward from ZB-H1, and what sums take from two replicas, as medians.  An update's memory
traffic comes from what 1F1B's steps take beside the pipeline; how much longer computations take
where ranks share cores comes from four replicas.  Then runs of all layouts alternate, with the
stages that the plan cut for them.  Prints JSON lines; progress goes to standard error.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STEPS = 10
WARM_UP = 2
MEDIAN_MAX, LARGEST_MAX = 0.03, 0.10
APART = 0.05  # Pairs whose predictions differ by more have to come in this order.
FIRST_MAX = 0.03
MICROBATCH = 2


class Layout(NamedTuple):
    pipe: int
    data: int
    zero: int
    schedule: str
    stages_per_rank: int

    def text(self) -> str:
        return (
            f"pipe {self.pipe} x data {self.data}, ZeRO {self.zero}, {self.schedule}"
            f" x {self.stages_per_rank}"
        )


PIPELINE = Layout(2, 1, 0, "1f1b", 1)
HALVES = Layout(2, 1, 0, "zb_h1", 1)
REPLICAS = Layout(1, 2, 0, "1f1b", 1)
# Layouts that lend costs, with the configuration's own stages.
LENDERS = [PIPELINE, HALVES, REPLICAS]
CROWDED = Layout(1, 4, 1, "1f1b", 1)  # All compute all the time.
LAYOUTS = [
    PIPELINE,
    Layout(2, 1, 0, "gpipe", 1),
    HALVES,
    Layout(2, 1, 0, "interleaved_1f1b", 2),
    Layout(2, 1, 0, "zbv", 2),
    REPLICAS,
    Layout(1, 2, 1, "1f1b", 1),
    Layout(4, 1, 0, "1f1b", 1),
    Layout(4, 1, 0, "zbv", 2),
    Layout(2, 2, 0, "1f1b", 1),
    Layout(2, 2, 2, "interleaved_1f1b", 2),
    CROWDED,
]
MODELS = {
    "gpt": {"type": "gpt", "layers": 8, "hidden": 256, "heads": 4, "sequence_length": 128},
    "mlp": {
        "type": "mlp",
        "layers": 10,
        "hidden": 512,
        "vocabulary": 2048,
        "sequence_length": 128,
    },
}


def configuration(model: dict) -> dict:
    return {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": MICROBATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "seed": 1,
        "model": model,
        "mesh": {"pipe": PIPELINE.pipe, "data": PIPELINE.data},
        "schedule": {"name": PIPELINE.schedule},
    }


class Run(NamedTuple):
    step: float  # Milliseconds, as the next.
    rest: float  # Milliseconds beside the pipeline.
    fit: dict  # Costs by `penstock report`.


class Plan:
    """The candidates of one world size, with these costs."""

    def __init__(self, bench: "Bench", world: int, options: list[str]):
        self.bench = bench
        self.command = [
            "plan", str(bench.config), "--world", str(world), "--memory", "64GB",
            "--layers", str(bench.layers), "--costs", str(bench.costs),
            "--cores-per-node", str(os.cpu_count()), "--no-recompute",
            "--microbatch-sizes", str(MICROBATCH), "--top", "1000", *options,
        ]  # fmt: skip
        self.candidates = json.loads(bench.penstock([*self.command, "--format", "json"]))[
            "candidates"
        ]

    def find(self, layout: Layout) -> tuple[int, dict]:
        """The candidate and its number."""
        for number, candidate in enumerate(self.candidates, 1):
            if all(candidate[name] == value for name, value in layout._asdict().items()):
                return number, candidate
        sys.exit(f"no candidate is {layout.text()}")

    def write(self, number: int, path: Path) -> None:
        self.bench.penstock([*self.command, "--explain", str(number), "--write", str(path)])


class Bench:
    """One model: its runs, the costs taken from them, and the plan made of these."""

    def __init__(self, program: Path, folder: Path, name: str, rounds: int):
        self.program, self.folder, self.name, self.rounds = program, folder, name, rounds
        self.config = folder / f"{name}.json"
        self.layers = folder / f"{name}.layers.json"
        self.costs = folder / f"{name}.costs.json"
        self.steps: dict[Layout, list[float]] = {each: [] for each in LAYOUTS}  # Milliseconds.
        self.lent: dict[Layout, list[Run]] = {each: [] for each in LENDERS}
        self.predicted: dict[Layout, float] = {}
        self.config.write_text(json.dumps(configuration(MODELS[name])))
        self.penstock(
            ["memory", str(self.config), "--layers", str(self.layers),
             "--microbatch-sizes", str(MICROBATCH)]
        )  # fmt: skip

    def penstock(self, arguments: list[str]) -> str:
        done = subprocess.run(
            [str(self.program), *arguments], capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            sys.exit(f"penstock {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def run(self, layout: Layout, config: Path, label: str) -> "Run":
        run = self.folder / f"{self.name}-{LAYOUTS.index(layout)}-{label}"
        fields = {
            "mesh.pipe": layout.pipe, "mesh.data": layout.data,
            "zero_optimization.stage": layout.zero, "schedule.name": layout.schedule,
            "train_micro_batch_size_per_gpu": MICROBATCH,
            "run.steps": STEPS, "run.timeline_steps": STEPS,
        }  # fmt: skip
        if layout.stages_per_rank > 1:
            fields["schedule.stages_per_rank"] = layout.stages_per_rank
        sets = [word for key, value in fields.items() for word in ("--set", f"{key}={value}")]
        self.penstock(["train", str(config), "--run", str(run), *sets])
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        times = [line["step_time_seconds"] for line in lines if "step_time_seconds" in line]
        step = 1000 * statistics.median(times[WARM_UP:])
        costs = run / "costs.json"
        report = self.penstock(["report", str(run), "--costs", str(costs), "--match-step"])
        makespan = next(x for x in report.splitlines() if x.startswith("makespan, median"))
        text = "\n".join(x for x in costs.read_text().splitlines() if not x.startswith("//"))
        print(f"{self.name} {label} {layout.text()}: {step:.1f} ms", file=sys.stderr, flush=True)
        return Run(step, step - float(makespan.split()[2]), json.loads(text))

    def calibrate(self) -> list[str]:
        """Writes the costs file; returns what the plan takes beside it."""

        def median(layout: Layout, key: str) -> list[float] | float:
            values = [run.fit[key] for run in self.lent[layout] if key in run.fit]
            if not isinstance(values[0], list):
                return statistics.median(values)
            return [statistics.median(column) for column in zip(*values, strict=True)]

        costs = {key: median(PIPELINE, key) for key in ("forward", "backward", "latency")}
        costs |= {key: median(HALVES, key) for key in ("input", "weight")}
        self.costs.write_text(json.dumps(costs))
        # What the plan makes of a known speed says which speed makes what was measured.
        link = f"intra=1GB/s:{1000 * costs['latency']:.0f}us"
        trial = Plan(self, 2, ["--bandwidth", "1e9", "--link", link])
        update = 1000 * trial.find(PIPELINE)[1]["parts"]["update"]
        sums = 1000 * trial.find(REPLICAS)[1]["parts"]["sums"]
        bandwidth = 1e9 * update / statistics.median(run.rest for run in self.lent[PIPELINE])
        bytes_per_second = 1e9 * sums / median(REPLICAS, "reduce")
        link = f"intra={bytes_per_second:.0f}B/s:{1000 * costs['latency']:.0f}us"
        return ["--bandwidth", f"{bandwidth:.0f}", "--link", link]

    def crowding(self, options: list[str]) -> list[str]:
        """A step grows in proportion to the crowding where ranks share cores."""
        config, rounds = self.cut(CROWDED, options), range(self.rounds)
        took = statistics.median(self.run(CROWDED, config, f"lends {n}").step for n in rounds)

        def step(crowding: float) -> float:
            plan = Plan(self, 4, [*options, "--crowding", str(crowding)])
            return 1000 * plan.find(CROWDED)[1]["step"]

        crowding = 1.0 + (took - step(1.0)) / (step(2.0) - step(1.0))
        return ["--crowding", f"{max(crowding, 1.0):.4f}"]

    def cut(self, layout: Layout, options: list[str]) -> Path:
        """A configuration with the plan's stages for it."""
        config = self.folder / f"{self.name}-{LAYOUTS.index(layout)}.json"
        plan = Plan(self, layout.pipe * layout.data, options)
        number, candidate = plan.find(layout)
        plan.write(number, config)
        self.predicted[layout] = 1000 * candidate["step"]
        return config

    def measure(self) -> list[str]:
        """The options of the plan that made the predictions."""
        for number in range(self.rounds):
            for layout in LENDERS:
                self.lent[layout].append(self.run(layout, self.config, f"lends {number}"))
        options = self.calibrate()
        options += self.crowding(options)
        configs = {layout: self.cut(layout, options) for layout in LAYOUTS}
        for number in range(self.rounds):
            for layout in LAYOUTS if number % 2 == 0 else reversed(LAYOUTS):
                self.steps[layout].append(self.run(layout, configs[layout], str(number)).step)
        return options

    def results(self) -> list[dict]:
        options = self.measure()
        lines = []
        predicted, measured = self.predicted, {}
        for layout in LAYOUTS:
            measured[layout] = statistics.median(self.steps[layout])
            lines.append(
                {
                    "model": self.name,
                    "layout": layout.text(),
                    "predicted_ms": round(predicted[layout], 1),
                    "median_ms": round(measured[layout], 1),
                    "min_ms": round(min(self.steps[layout]), 1),
                    "max_ms": round(max(self.steps[layout]), 1),
                    "off_by": round(predicted[layout] / measured[layout] - 1, 4),
                }
            )
        off = [abs(line["off_by"]) for line in lines]
        pairs = [
            (a, b) for a in LAYOUTS for b in LAYOUTS if predicted[b] > (1 + APART) * predicted[a]
        ]
        wrong = [f"{a.text()} | {b.text()}" for a, b in pairs if measured[a] >= measured[b]]
        first = min(LAYOUTS, key=lambda each: predicted[each])
        above = measured[first] / min(measured.values()) - 1
        lines.append(
            {
                "model": self.name,
                "options": " ".join(options),
                "median_off_by": round(statistics.median(off), 4),
                "largest_off_by": round(max(off), 4),
                "pairs": len(pairs),
                "wrong_order": wrong,
                "first": first.text(),
                "first_above_fastest": round(above, 4),
                "met": {
                    "median": statistics.median(off) <= MEDIAN_MAX,
                    "largest": max(off) <= LARGEST_MAX,
                    "order": not wrong,
                    "first": above <= FIRST_MAX,
                },
            }
        )
        return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    arguments = parser.parse_args()
    print(
        json.dumps(
            {
                "bench": "predicted",
                "day": datetime.date.today().isoformat(),
                "cores": os.cpu_count(),
                "rounds": arguments.rounds,
                "steps": STEPS,
            }
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS if arguments.model == "all" else [arguments.model]:
            bench = Bench(arguments.build / "bin/penstock", Path(folder), name, arguments.rounds)
            for line in bench.results():
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
