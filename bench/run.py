#!/usr/bin/env python3
"""Benchmarks of two ranks: penstock against a bare loop, torch and DeepSpeed.

Every contender is a program of its own (two ranks, one thread each).  One alternation runs each
entry of a group once, in a fresh order, and takes the median of its steps; the figures compared are
the lower quartiles over the alternations, because a shared machine only ever adds time.  Prints one
JSON line an entry, then one a ratio, with the bar it is judged by.  A line with "commit" begins a
run: what follows is of it, so that the lines of several runs can stand in one file.

The peers run if bench/setup_peers.sh has installed them (`make bench-peers`).
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / ".venv-peers" / "bin" / "python"
SMALL = ["--width", "8", "--batch", "32", "--microbatches", "32"]
LARGE = ["--width", "512", "--batch", "256", "--microbatches", "8"]
WIDE = ["--width", "1024", "--batch", "128", "--microbatches", "4"]
# Stages per rank of each schedule, and the bar of penstock over torch at d 8.
SCHEDULES = {
    "gpipe": (1, 1 / 2.5),
    "1f1b": (1, 1 / 2.5),
    "interleaved_1f1b": (2, 1 / 6),
    "interleaved_zero_bubble": (2, 1 / 6),
    "zbv": (2, 1 / 4.5),
}
CONTENDERS = ["penstock", "before", "bare", "bound", "torch", "deepspeed", "python", "plain"]
BEFORE_WITHIN = 1.03  # Share of another build's time, with --before.
PREDICTED_WITHIN = 0.10  # Share of the measured lower quartile.
DELAYED_WITHIN = 0.05  # Share above it that is allowed with a millisecond on every hop.
TOLD_APART = 0.05  # Schedules predicted further apart than this come in the order predicted.


@dataclass
class Group:
    """Entries "contender/schedule" that are measured in turn, and the ratios they are judged by.

    benchmark: "pipeline"; "zero", whose entries are "contender/mode"; "language_model"; or
    "tensor", whose entries are "contender/block".
    memory: ratios of peak RSS.
    """

    name: str
    arguments: list[str]
    entries: list[str]
    # Numerator, denominator, limit.
    ratios: list[tuple[str, str, float]] = field(default_factory=list)
    predict: bool = False
    within: float = PREDICTED_WITHIN
    only_above: bool = False  # Less than predicted is met, however much.
    needs_root: bool = False
    benchmark: str = "pipeline"
    memory: list[tuple[str, str, float]] = field(default_factory=list)

    def words(self, entry: str) -> list[str]:
        contender, schedule = entry.split("/")
        if self.benchmark == "tensor":
            return self.arguments
        if self.benchmark == "zero":
            return [*self.arguments, "--mode", schedule]
        if self.benchmark == "language_model":
            mode = "penstock" if contender == "before" else contender
            return [*self.arguments, "--schedule", schedule, "--mode", mode]
        stages = ["--stages-per-rank", str(SCHEDULES.get(schedule, (1, 0))[0])]
        predict = ["--predict"] if self.predict and contender == "penstock" else []
        return [*self.arguments, "--schedule", schedule, *stages, *predict]


def beside_before(group: Group) -> Group:
    """The group's entries of penstock, each beside the same of another build."""
    entries = [entry for entry in group.entries if contender_of(entry) == "penstock"]
    before = {entry: entry.replace("penstock/", "before/") for entry in entries}
    ratios = [(entry, other, BEFORE_WITHIN) for entry, other in before.items()]
    memory = ratios if group.benchmark == "language_model" else []
    return replace(
        group, entries=[*entries, *before.values()], ratios=ratios, memory=memory, predict=False
    )


def each(contenders: list[str]) -> list[str]:
    return [f"{contender}/{schedule}" for contender in contenders for schedule in SCHEDULES]


def contender_of(entry: str) -> str:
    return entry.split("/")[0]


def over(contender: str, bar: float) -> list[tuple[str, str, float]]:
    return [(f"penstock/{schedule}", f"{contender}/{schedule}", bar) for schedule in SCHEDULES]


def from_python(contender: str, bar: float) -> list[tuple[str, str, float]]:
    return [(f"python/{schedule}", f"{contender}/{schedule}", bar) for schedule in SCHEDULES]


def over_transport(transport: str) -> Group:
    schedules = ["1f1b", "interleaved_1f1b"]
    return Group(
        f"d8/{transport}",
        [*SMALL, "--transport", transport],
        [f"{contender}/{schedule}" for contender in ("penstock", "bare") for schedule in schedules],
        [(f"penstock/{schedule}", f"bare/{schedule}", 1.25) for schedule in schedules],
    )


def zero_group(width: int, batch: int, more: list[str], ratios: list, memory: list) -> Group:
    modes = [f"penstock/zero{stage}" for stage in range(4)]
    peers = [f"deepspeed/zero{stage}" for stage in range(1, 4)] + ["torch/ddp", "torch/fsdp2"]
    arguments = ["--width", str(width), "--batch", str(batch), "--microbatches", "1", *more]
    entries = modes + peers
    return Group(f"zero/d{width}", arguments, entries, ratios, benchmark="zero", memory=memory)


def tensor_group(width: int, bar: float) -> Group:
    arguments = ["--width", str(width), "--batch", "1", "--microbatches", "1"]
    ours, theirs = "penstock/block", "torch/block"
    ratios = [(ours, theirs, bar)]
    return Group(f"tensor/d{width}", arguments, [ours, theirs], ratios, benchmark="tensor")


def of_zero_bubble(contender: str) -> list[str]:
    return [f"{contender}/{schedule}" for schedule in ("interleaved_zero_bubble", "zbv")]


def over_torch() -> list[tuple[str, str, float]]:
    pairs = zip(of_zero_bubble("penstock"), of_zero_bubble("torch"), strict=True)
    return [(ours, theirs, 0.58) for ours, theirs in pairs]


def smollm2_group(model: str) -> Group:
    return Group(
        model,
        ["--batch", "4", "--microbatches", "4", "--model", model],
        ["penstock/1f1b", "torch/1f1b"],
        [("penstock/1f1b", "torch/1f1b", 0.85)],
        benchmark="language_model",
        memory=[("penstock/1f1b", "torch/1f1b", 0.6)],
    )


GROUPS = [
    Group(
        "d8",
        SMALL,
        each(["penstock", "bare", "torch"]),
        over("bare", 1.25)
        + [(f"penstock/{name}", f"torch/{name}", bar) for name, (_, bar) in SCHEDULES.items()],
    ),
    # The torch peer's own script, with its import line changed.
    Group(
        "d8/python",
        SMALL,
        [*each(["python", "penstock", "torch"]), "plain/1f1b"],
        from_python("penstock", 1.5)
        + [(f"python/{name}", "plain/1f1b", 1.25) for name in SCHEDULES]
        + [(f"python/{name}", f"torch/{name}", bar) for name, (_, bar) in SCHEDULES.items()],
    ),
    Group("d512/python", LARGE, each(["python", "torch"]), from_python("torch", 1.0)),
    over_transport("tcp"),
    over_transport("gloo"),
    Group(
        "d8/sgd",
        [*SMALL, "--sgd"],
        ["penstock/1f1b", "deepspeed/1f1b", "torch/1f1b"],
        [("penstock/1f1b", "deepspeed/1f1b", 1 / 1.6), ("penstock/1f1b", "torch/1f1b", 1 / 2.5)],
    ),
    Group(
        "d512",
        LARGE,
        each(["penstock", "bare", "torch"]),
        over("torch", 1.0) + over_torch(),
        predict=True,
    ),
    Group(
        "d512/sgd",
        [*LARGE, "--sgd"],
        ["penstock/1f1b", "deepspeed/1f1b", "torch/1f1b"],
        [("penstock/1f1b", "deepspeed/1f1b", 1.0), ("penstock/1f1b", "torch/1f1b", 1.0)],
    ),
    Group(
        "d512/delayed",
        [*LARGE, "--delay-us", "1000"],
        ["penstock/1f1b", "penstock/interleaved_1f1b", "penstock/zbv"],
        predict=True,
        within=DELAYED_WITHIN,
        only_above=True,
        needs_root=True,
    ),
    Group(
        "d1024",
        WIDE,
        ["penstock/1f1b", "penstock/zb_h1", *of_zero_bubble("penstock"), *of_zero_bubble("torch")],
        [
            ("penstock/zb_h1", "penstock/1f1b", 0.95),
            ("penstock/zbv", "penstock/1f1b", 0.95),
            *over_torch(),
        ],
        predict=True,
    ),
    zero_group(
        8,
        256,
        [],
        [("penstock/zero3", "deepspeed/zero3", 1 / 5), ("penstock/zero3", "torch/fsdp2", 1 / 5)],
        [],
    ),
    zero_group(
        512,
        256,
        [],
        [(f"penstock/zero{s}", f"deepspeed/zero{s}", 1 / 1.25) for s in range(1, 4)]
        + [("penstock/zero3", "torch/fsdp2", 1 / 1.25)]
        + [(f"penstock/zero{s}", "penstock/zero0", 1.25) for s in range(1, 4)],
        [],
    ),
    zero_group(
        2048,
        16,
        ["--adam"],
        [("penstock/zero3", "torch/ddp", 1.6)],
        [("penstock/zero3", "penstock/zero0", 0.65), ("penstock/zero3", "torch/ddp", 1.0)],
    ),
    Group(
        "llama",
        ["--batch", "16", "--microbatches", "16"],
        [f"{contender}/1f1b" for contender in ("penstock", "bound", "torch", "deepspeed")],
        [
            ("penstock/1f1b", "bound/1f1b", 1.05),
            ("penstock/1f1b", "torch/1f1b", 0.80),
            ("penstock/1f1b", "deepspeed/1f1b", 0.75),
        ],
        benchmark="language_model",
        memory=[("penstock/1f1b", f"{peer}/1f1b", 0.33) for peer in ("torch", "deepspeed")],
    ),
    smollm2_group("smollm2"),
    smollm2_group("smollm2_adapters"),
    tensor_group(64, 0.2),
    tensor_group(512, 0.91),
]


@dataclass
class Builds:
    here: Path
    before: Path | None


def command_of(contender: str, builds: Builds, benchmark: str) -> list[str] | None:
    """The words that start a contender, or None where it is not installed."""
    build = builds.before if contender == "before" else builds.here
    programs = {
        "penstock": f"bench_{benchmark}",
        "before": f"bench_{benchmark}",
        "bound": f"bench_{benchmark}",
        "bare": "bench_bare_loop",
    }
    if contender in programs:
        return [str(build / "bench" / programs[contender])]
    if not PEERS.exists():
        return None
    scripts = {
        "torch": "torch_pipelining.py",
        "python": "torch_pipelining.py",
        "plain": "plain_loop.py",
        "deepspeed": "deepspeed_pipeline.py",
    }
    script = scripts[contender] if benchmark == "pipeline" else f"{benchmark}.py"
    words = [str(PEERS), "-W", "ignore", str(ROOT / "bench" / "peers" / script)]
    if contender != "python":
        return words
    package = [f"PYTHONPATH={build / 'python'}", "PIPELINING=penstock.pipelining"]
    return ["env", *package, *words]


def run_once(command: list[str], arguments: list[str], steps: int) -> dict:
    words = [*command, *arguments, "--steps", str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines or done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def lower_quartile(values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=4, method="inclusive")[0]


def spread(values: list[float]) -> dict:
    return {
        "lower_quartile_ms": round(lower_quartile(values), 3),
        "median_ms": round(statistics.median(values), 3),
        "min_ms": round(min(values), 3),
        "max_ms": round(max(values), 3),
    }


def measure(
    group: Group, builds: Builds, contenders: list[str], alternations: int, steps: int
) -> list[dict]:
    entries = [entry for entry in group.entries if contender_of(entry) in contenders]
    commands = {
        entry: command_of(contender_of(entry), builds, group.benchmark) for entry in entries
    }
    present = [entry for entry in entries if commands[entry]]
    if len(present) < len(commands):
        print(f"# {group.name}: without peers, run `make bench-peers`", file=sys.stderr)
    results: dict[str, list[dict]] = {entry: [] for entry in present}
    for _ in range(alternations):
        for entry in random.sample(present, len(present)):
            words = group.words(entry)
            result = run_once(commands[entry], words, steps)
            results[entry].append(result)
            planned = result.get("planned_activations")
            if planned is not None and result["peak_activations"] != planned:
                alive = result["peak_activations"]
                sys.exit(f"{group.name}: {entry}: {alive} activations alive, {planned} planned")
    quartiles, medians = {}, {}
    lines = []
    for entry, repeated in results.items():
        times = spread([result["median_ms"] for result in repeated])
        quartiles[entry], medians[entry] = times["lower_quartile_ms"], times["median_ms"]
        lines.append({"group": group.name, "entry": entry, **times, **shares(repeated)})
    lines += memory_ratios(group, results)
    for above, below, bar in group.ratios:
        if above in quartiles and below in quartiles:
            ratio = quartiles[above] / quartiles[below]
            lines.append({
                "group": group.name, "ratio": f"{above} over {below}", "value": round(ratio, 3),
                "of_medians": round(medians[above] / medians[below], 3),
                "at_most": round(bar, 3), "met": ratio <= bar,
            })  # fmt: skip
    return lines + (predictions(group, results, quartiles) if group.predict else [])


def memory_ratios(group: Group, results: dict[str, list[dict]]) -> list[dict]:
    """Ratios of medians of the larger rank's peak RSS."""
    peaks = {
        entry: statistics.median(result["peak_rss_mb"] for result in repeated)
        for entry, repeated in results.items()
        if "peak_rss_mb" in repeated[0]
    }
    lines = [
        {"group": group.name, "memory": entry, "peak_rss_mb": round(peak)}
        for entry, peak in peaks.items()
    ]
    for above, below, bar in group.memory:
        if above in peaks and below in peaks:
            ratio = peaks[above] / peaks[below]
            lines.append({
                "group": group.name, "memory": f"{above} over {below}", "value": round(ratio, 3),
                "at_most": bar, "met": ratio <= bar,
            })  # fmt: skip
    return lines


def shares(repeated: list[dict]) -> dict:
    """How busy the processor kept each rank, where the program says."""
    if "cpu_share" not in repeated[0]:
        return {}
    ranks = zip(*(result["cpu_share"] for result in repeated), strict=True)
    return {"cpu_share": [round(statistics.median(rank), 3) for rank in ranks]}


def predictions(group: Group, results: dict[str, list[dict]], quartiles: dict) -> list[dict]:
    """What was simulated from measured costs, beside what was measured."""
    predicted = {
        entry: lower_quartile([result["predicted_ms"] for result in repeated])
        for entry, repeated in results.items()
        if "predicted_ms" in repeated[0]
    }
    lines = []
    for entry, value in predicted.items():
        drift = quartiles[entry] / value - 1
        met = (drift if group.only_above else abs(drift)) <= group.within
        lines.append({
            "group": group.name, "predicted": entry, "predicted_ms": round(value, 3),
            "measured_ms": quartiles[entry], "drift": round(drift, 3),
            "at_most": group.within, "met": met,
        })  # fmt: skip
    for a, b in itertools.combinations(predicted, 2):
        fast, slow = sorted((a, b), key=predicted.get)
        if predicted[slow] / predicted[fast] - 1 > TOLD_APART:
            lines.append({
                "group": group.name, "faster": fast, "than": slow,
                "predicted": round(predicted[fast] / predicted[slow], 3),
                "measured": round(quartiles[fast] / quartiles[slow], 3),
                "met": quartiles[fast] < quartiles[slow],
            })  # fmt: skip
    return lines


def deepspeed_buffers() -> set[Path]:
    """DeepSpeed leaves its all-reduce buffers in shared memory."""
    return set(Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--before", type=Path,
                        help="build of another commit, to compare this one's with")  # fmt: skip
    parser.add_argument("--alternations", type=int, default=12)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of one run")
    parser.add_argument("--group", choices=[group.name for group in GROUPS])
    parser.add_argument("--contender", choices=CONTENDERS, action="append",
                        help="only this one's entries; may be given again")  # fmt: skip
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    contenders = args.contender or CONTENDERS
    builds = Builds(here=args.build, before=args.before)
    print(json.dumps({"commit": commit, "date": datetime.date.today().isoformat(),
                      "machine": platform.machine(), "cores": os.cpu_count(),
                      "contenders": contenders, "alternations": args.alternations,
                      "steps": args.steps}), flush=True)  # fmt: skip
    others = deepspeed_buffers()
    try:
        for group in GROUPS:
            if args.group and args.group != group.name:
                continue
            if group.needs_root and os.geteuid() != 0:
                print(f"# {group.name}: needs root, for network devices", file=sys.stderr)
                continue
            if args.before:
                group = beside_before(group)
            for line in measure(group, builds, contenders, args.alternations, args.steps):
                print(json.dumps(line), flush=True)
    finally:
        for path in deepspeed_buffers() - others:
            path.unlink()


if __name__ == "__main__":
    main()
