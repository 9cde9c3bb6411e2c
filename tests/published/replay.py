"""Published runs, planned: what `penstock plan --only` says of each layout that somebody measured.

Rows are in rows.jsonl, one a line, as their sources print them; sources.json says which those are,
and what is read into them.  A row's layout is priced with the device's table.  No row
has a number of its own; device_model.cpp says which share of a device was chosen over its tables.
Needs the standard library, and a build without torch.

    python3 tests/published/replay.py [TABLE...] [--rows] [--write-reached]

--write-reached writes reached.json, and the table of docs/plan.md.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shapes

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("PENSTOCK_BUILD", HERE.parents[1] / "build")).resolve()
PENSTOCK = BUILD / "bin" / "penstock"
REACHED = HERE / "reached.json"
PAGE = HERE.parents[1] / "docs" / "plan.md"
HEAD = (
    "| table | rows | median error | within 20 % | tau | memory, median | worst | edges |",
    "|---|---|---|---|---|---|---|---|",
)
UNITS = {"GB": 1e9, "GiB": 2**30, "bytes": 1}
# Rates of links of the device table, which a row may override: bytes a second.
NETWORKS = {"a100-40": 25, "a100-80": 25, "h100-sxm": 50, "h100-96": 50}


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / "rows.jsonl").read_text().splitlines()]


def sources() -> dict[str, Any]:
    return json.loads((HERE / "sources.json").read_text())


def table_of(row: dict[str, Any]) -> str:
    return row["id"].split("/")[0]


def model_operations(row: dict[str, Any], program: dict[str, Any], counts: str) -> float:
    """Operations of a step as papers count them, attention whole."""
    tokens = row["samples"] * row["sequence"]
    if "config" in program:
        return tokens * experts_operations(row["sequence"], program["config"], counts)
    h, ffn, gates = row["hidden"], row["ffn"], 2 if program.get("gated") else 1
    kv = 2 * h * row["kv_heads"] / row["heads"]
    block = 2 * (h * (h + kv) + h * h + (gates + 1) * h * ffn) + 4 * row["sequence"] * h
    passes = 4 if counts == "hardware" and row["recompute"] == "full" else 3
    return tokens * (passes * row["layers"] * block + 3 * 2 * h * row["vocabulary"])


def experts_operations(sequence: int, model: dict[str, Any], counts: str) -> float:
    """The same of a token, of the experts that it goes to."""
    h, heads = model["hidden_size"], model["num_attention_heads"]
    head = model.get("head_dim", h // heads)
    linear = h * head * (2 * heads + 2 * model["num_key_value_heads"])
    width = model.get("moe_intermediate_size", model["intermediate_size"])
    linear += 3 * h * width * model["num_experts_per_tok"]
    attention = 2 * sequence * heads * head * (1 if counts == "half" else 2)
    block = 2 * linear + attention
    return 3 * (model["num_hidden_layers"] * block + 2 * h * model["vocab_size"])


def ranks_of(row: dict[str, Any]) -> int:
    return row["pipe"] * row["tensor"] * row["data"] * row.get("context", 1)


def measured_step(row: dict[str, Any], program: dict[str, Any]) -> float | None:
    """Seconds of a step; None: nobody measured one."""
    measured = row["measured"]
    ranks = ranks_of(row)
    if "step_s" in measured:
        return measured["step_s"]
    if "tokens_s_device" in measured:
        return row["samples"] * row["sequence"] / ranks / measured["tokens_s_device"]
    if "samples_s_device" in measured:
        return row["samples"] / ranks / measured["samples_s_device"]
    if "tflops_device" in measured:
        operations = model_operations(row, program, measured["counts"])
        return operations / ranks / measured["tflops_device"] / 1e12
    return None


@dataclass
class Planned:
    row: dict[str, Any]
    step: float  # Seconds.
    measured: float | None
    peaks: list[float]  # Bytes by pipeline rank.
    fits: bool
    times: dict[str, float]  # Parts of the first rank's step.

    def error(self) -> float:
        """Relative, of the step."""
        return self.step / self.measured - 1

    def memory_error(self) -> float | None:
        measured = self.row["measured"]
        if "memory" not in measured:
            return None
        is_last = "last" in measured["memory_of"]
        planned = self.peaks[-1] if is_last else max(self.peaks)
        if "nvidia-smi" in measured["memory_of"]:
            planned += context(self.row)
        return planned / (measured["memory"] * UNITS[measured["memory_unit"]]) - 1


def context(row: dict[str, Any]) -> float:
    """Bytes that CUDA itself takes."""
    return 1.3e9 if row["device"].startswith("v100") else 2e9


def peak_of(parts: dict[str, int], row: dict[str, Any], program: dict[str, Any]) -> float:
    """A rank's bytes.  Other programs add gradients in place: they have one copy of them."""
    if row["zero"] == 3 or "gradients" not in program:
        return parts["peak"]
    elements = parts["parameters"] / shapes.SHORT
    own = elements * program["gradients"] + program.get("buckets", 0)
    return parts["peak"] - parts["gradients"] - parts["buckets"] + own


def planned(row: dict[str, Any], folder: Path) -> Planned:
    """Runs `penstock plan --only` on it."""
    program = sources()[table_of(row)]["program"]
    config: dict[str, Any] = {
        "train_batch_size": row["samples"],
        "train_micro_batch_size_per_gpu": row["microbatch"],
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }  # fmt: skip
    model = program.get("config")
    if model is None:
        layers = shapes.layers_file(row, program)
        (folder / "layers.json").write_text(json.dumps(layers))
        block = sum(each["elements"] for each in layers["sizes"][0]["layers"][1]["parameters"])
        config["model"] = {
            "layers": row["layers"], "hidden": row["hidden"], "heads": row["heads"],
            "vocabulary": row["vocabulary"], "sequence_length": row["sequence"],
        }  # fmt: skip
    else:  # The plan's own formulas.
        (folder / "config.json").write_text(json.dumps(model))
        config["model"] = {"type": "hugging_face", "path": ".", "weights": "random",
                           "sequence_length": row["sequence"]}  # fmt: skip
        width = model.get("moe_intermediate_size", model["intermediate_size"])
        names = ("n_routed_experts", "num_experts", "num_local_experts")
        experts = next(model[name] for name in names if name in model)
        block = 3 * model["hidden_size"] * width * experts // row.get("expert", 1)
    # Blocks come whole, one ahead.
    config["zero_optimization"] = {"stage3_prefetch_bucket_size": block}
    (folder / "run.json").write_text(json.dumps(config))
    device = row["device"]
    other: dict[str, Any] = {}
    if row.get("network_gb_s", NETWORKS.get(device)) != NETWORKS.get(device):
        other["network_bytes_per_s"] = row["network_gb_s"] * 1e9
    if "attention_shares" in program:  # Of the attention that ran.
        other["attention_share"], other["attention_backward_share"] = program["attention_shares"]
    if other:
        (folder / "device.json").write_text(json.dumps({"like": device, **other}))
        device = "device.json"
    stages = row["pipe"] * row["stages_per_rank"]
    blocks = row["layers"] if model is None else model["num_hidden_layers"]
    is_even = blocks % stages == 0 or (blocks + 2) % stages == 0
    layout = ",".join(
        f"{key}={row[key]}"
        for key in ("pipe", "tensor", "data", "zero", "schedule", "stages_per_rank", "microbatch",
                    "recompute", "context", "expert") if key in row
    ) + (",stages=even" if is_even else "")  # fmt: skip
    words = ["plan", "run.json", "--device", device, "--only", layout, "--ranks-per-node",
             str(row["per_node"]), "--format", "json"]  # fmt: skip
    words += ["--layers", "layers.json"] if model is None else program["options"]
    done = subprocess.run(
        [str(PENSTOCK), *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{row['id']}: {done.stderr}")
    told = json.loads(done.stdout)["layouts"][0]
    memory = json.loads(done.stdout)["memory"]
    peaks = [peak_of(rank["bytes"], row, program) for rank in told["ranks"]]
    return Planned(
        row=row, step=told["step"], measured=measured_step(row, program), peaks=peaks,
        fits=max(peaks) + context(row) <= memory, times=told["ranks"][0]["times"],
    )  # fmt: skip


def bubble(row: dict[str, Any]) -> float:
    """The bubble of its schedule, simulated with the passes and messages that were measured."""
    forward, inputs, weights, message = row["measured"]["passes_ms"]
    microbatches = row["samples"] // row["microbatch"] // row["data"]
    words = ["simulate", row["schedule"], "--ranks", row["pipe"], "--microbatches", microbatches,
             "--forward", forward, "--input", inputs, "--weight", weights, "--latency", message,
             "--json"]  # fmt: skip
    told = subprocess.run(
        [str(PENSTOCK), *map(str, words)], capture_output=True, text=True, check=True
    ).stdout
    # A rank is timed from its own first pass to its own last one.
    span = max(rank["span"] for rank in json.loads(told)["ranks"])
    return 1 - microbatches * (forward + inputs + weights) / span


def tau(pairs: list[tuple[float, float]]) -> float | None:
    """Kendall's, of planned against measured; None: fewer than two rows."""
    concordant = discordant = 0
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        sign = (a - c) * (b - d)
        concordant += sign > 0
        discordant += sign < 0
    all_pairs = concordant + discordant
    return (concordant - discordant) / all_pairs if all_pairs else None


@dataclass
class Summary:
    """What is reached for a table.  Errors are relative; None: the table measures no such thing."""

    rows: int
    median: float | None
    within: float | None  # Share of rows within 20 %.
    order: float | None
    memory: float | None  # Median error.
    memory_worst: float | None
    edges: float | None  # Share of rows whose fitting into memory is told right.


def speed(row: dict[str, Any], step: float) -> float:
    """Tokens a second and rank."""
    return row["samples"] * row["sequence"] / step / ranks_of(row)


def summary(plans: list[Planned]) -> Summary:
    timed = [each for each in plans if each.measured]
    errors = [abs(each.error()) for each in timed]
    memory = [abs(e) for each in plans if (e := each.memory_error()) is not None]
    pairs = [(speed(e.row, e.step), speed(e.row, e.measured)) for e in timed]
    has_edges = any(each.row["measured"].get("out_of_memory") for each in plans)
    right = [each.fits != each.row["measured"].get("out_of_memory", False) for each in plans]
    return Summary(
        rows=len(plans), median=statistics.median(errors) if errors else None,
        within=sum(e <= 0.2 for e in errors) / len(errors) if errors else None, order=tau(pairs),
        memory=statistics.median(memory) if memory else None,
        memory_worst=max(memory) if memory else None,
        edges=sum(right) / len(right) if has_edges else None,
    )  # fmt: skip


def replay(tables: set[str]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-published-") as folder:
        for row in rows():
            if table_of(row) in tables and table_of(row) != "zb-t5":
                found.setdefault(table_of(row), []).append(planned(row, Path(folder)))
    return found


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def in_words(each: Planned) -> str:
    """A row's errors, and what its first rank does for 1 % of the step or more."""
    row = each.row
    parts = [f"{name} {part / each.step:.0%}" for name, part in each.times.items()
             if name != "step" and part > 0.01 * each.step]  # fmt: skip
    edge = " (out of memory)" if row["measured"].get("out_of_memory") else ""
    return (
        f"{row['id']} pipe {row['pipe']} tensor {row['tensor']} context {row.get('context', 1)} "
        f"expert {row.get('expert', 1)} data {row['data']} ZeRO {row['zero']} "
        f"microbatch {row['microbatch']}: step {each.step:.4g} s, "
        f"{percent(each.error()) if each.measured else '?'}; {max(each.peaks) / 1e9:.1f} GB, "
        f"{percent(each.memory_error()) or '?'}, {'fits' if each.fits else 'does not fit'}{edge}; "
        + ", ".join(parts)
    )


def line_of(table: str, plans: list[Planned]) -> str:
    s = summary(plans)
    order = "" if s.order is None else f"{s.order:.2f}"
    cells = (table, s.rows, percent(s.median), percent(s.within), order, percent(s.memory),
             percent(s.memory_worst), percent(s.edges))  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def write_page(found: dict[str, list[Planned]]) -> None:
    """Puts the table into its page."""
    head, begin, rest = PAGE.read_text().partition("<!-- generated: begin -->\n")
    _, end, tail = rest.partition("<!-- generated: end -->")
    lines = "\n".join([*HEAD, *itertools.starmap(line_of, found.items())])
    PAGE.write_text(f"{head}{begin}\n{lines}\n\n{end}{tail}")


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    found = replay(set(words or sources()))
    print("\n".join(HEAD))
    for table, plans in found.items():
        print(line_of(table, plans))
        if "--rows" in sys.argv:
            for each in plans:
                print(f"  {in_words(each)}")
    if "--write-reached" in sys.argv:
        write_page(found)
        reached = {
            table: {
                name: round(value, 4)
                for name, value in vars(summary(plans)).items()
                if value is not None
            }
            for table, plans in found.items()
        }
        lines = (f"  {json.dumps(table)}: {json.dumps(each)}" for table, each in reached.items())
        REACHED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
