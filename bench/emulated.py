#!/usr/bin/env python3
"""What `penstock emulate` and `plan` say of steps of this machine, against what they take.

Figures come from `penstock profile --device`, in every round anew: other work on the machine is in
them as it is in the steps.  Then the runs of the round take their turns.  Layouts are those of
the groups d512, zero/d512 and llama of bench/run.py, as configurations, and two whose ranks share
layers.  A plan knows no data of its own: it prices one layout.  Each step's time is a
median of its run, each result the median of all rounds.  Memory is that of tensors: what `penstock
memory` tells for processors.  Prints JSON lines; progress goes to standard error.
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

ROOT = Path(__file__).resolve().parent.parent
MEDIAN_MAX, MEMORY_MAX = 0.10, 0.03
WARM_UP = 2

BLOCKS = {"type": "mlp", "layers": 8, "hidden": 512, "vocabulary": 256, "sequence_length": 32}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 8192,
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32",
    "tie_word_embeddings": False,
}  # fmt: skip


def entries() -> dict[str, dict]:
    """Configurations by name; two ranks each."""
    common = {"seed": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
    batch = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}
    pipes = {
        f"d512/{schedule}": {
            **common, **batch, "model": BLOCKS, "mesh": {"pipe": 2, "data": 1},
            "schedule": {"name": schedule, "stages_per_rank": stages},
        }
        for schedule, stages in (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zbv", 2))
    }  # fmt: skip
    replicas = {
        f"zero/d512/zero{stage}": {
            **common, **batch, "model": BLOCKS, "mesh": {"pipe": 1, "data": 2},
            "zero_optimization": {"stage": stage},
        }
        for stage in range(4)
    }  # fmt: skip
    llama = {
        **common, "train_batch_size": 16, "train_micro_batch_size_per_gpu": 1,
        "mesh": {"pipe": 2, "data": 1}, "schedule": {"name": "1f1b"},
        "model": {"type": "hugging_face", "path": "llama", "weights": "random",
                  "sequence_length": 256},
    }  # fmt: skip
    shared = {
        "d512/tensor": {**pipes["d512/1f1b"], "mesh": {"pipe": 1, "data": 1, "tensor": 2}},
        "llama/tensor": {**llama, "mesh": {"pipe": 1, "data": 1, "tensor": 2}},
    }
    return {**pipes, **replicas, "llama/1f1b": llama, **shared}


class Bench:
    def __init__(self, program: Path, folder: Path, steps: int):
        self.program, self.folder, self.steps = program, folder, steps
        (folder / "llama").mkdir()
        (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
        for name, config in entries().items():
            self.config(name).write_text(json.dumps(config))
        self.runs = 0

    def config(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.json"

    def penstock(self, *words: object) -> str:
        done = subprocess.run([str(self.program), *map(str, words)], capture_output=True,
                              text=True, timeout=600, cwd=self.folder)  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"penstock {' '.join(map(str, words))} ended with {done.returncode}:\n"
                     f"{done.stderr}")  # fmt: skip
        return done.stdout

    def measured(self, name: str) -> float:
        """Milliseconds of a step."""
        self.runs += 1
        run = self.folder / f"run-{self.runs}"
        self.penstock("train", self.config(name), "--nproc", 2, "--run", run,
                      "--set", f"run.steps={self.steps}")  # fmt: skip
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        times = [line["step_time_seconds"] for line in lines if "step_time_seconds" in line]
        return 1000 * statistics.median(times[WARM_UP:])

    def emulated(self, name: str) -> tuple[float, int]:
        """Milliseconds of a step, and bytes of the fullest rank."""
        words = ("emulate", self.config(name), "--device", "here.json", "--json")
        told = json.loads(self.penstock(*words))
        return 1000 * told["step_s"], max(each["peak_bytes"] for each in told["ranks"])

    def planned(self, name: str) -> float:
        """Milliseconds of a step."""
        config = json.loads(self.config(name).read_text())
        schedule = {"name": "1f1b", "stages_per_rank": 1, **config.get("schedule", {})}
        layout = {
            "tensor": 1, **config["mesh"],
            "zero": config.get("zero_optimization", {}).get("stage", 0),
            "schedule": schedule["name"], "stages_per_rank": schedule["stages_per_rank"],
            "microbatch": config["train_micro_batch_size_per_gpu"],
        }  # fmt: skip
        only = ",".join(f"{key}={value}" for key, value in layout.items())
        words = ("plan", self.config(name), "--device", "here.json", "--only", only)
        return 1000 * json.loads(self.penstock(*words, "--format", "json"))["layouts"][0]["step"]

    def told(self, name: str) -> int:
        told = json.loads(self.penstock("memory", self.config(name), "--json"))
        return max(each["peak"]["total"] for each in told["pipe_ranks"])

    def round(self) -> dict[str, tuple[float, float, float, int]]:
        self.penstock("profile", "--device", "here.json")
        results = {}
        for name in entries():
            emulated, peak = self.emulated(name)
            results[name] = (self.measured(name), emulated, self.planned(name), peak)
            print(f"{name}: {results[name][0]:.1f} ms, emulated {emulated:.1f}",
                  file=sys.stderr, flush=True)  # fmt: skip
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.build / "bin" / "penstock", Path(folder), options.steps)
        load = os.getloadavg()[0]
        rounds = [bench.round() for _ in range(options.rounds)]
        off, off_planned, memory = [], [], []
        for name in entries():
            measured = [each[name][0] for each in rounds]
            emulated = [each[name][1] for each in rounds]
            of_round = [b / a - 1 for a, b in zip(measured, emulated, strict=True)]
            off.append(statistics.median(of_round))
            off_planned.append(
                statistics.median(each[name][2] / each[name][0] - 1 for each in rounds)
            )
            memory.append(rounds[0][name][3] / bench.told(name) - 1)
            print(json.dumps({
                "name": name,
                "measured_ms": round(statistics.median(measured), 1),
                "min_ms": round(min(measured), 1),
                "max_ms": round(max(measured), 1),
                "emulated_ms": round(statistics.median(emulated), 1),
                "off_by": round(off[-1], 4),
                "off_by_of_rounds": [round(each, 3) for each in of_round],
                "planned_off_by": round(off_planned[-1], 4),
                "memory_off_by": round(memory[-1], 4),
            }), flush=True)  # fmt: skip
        of_step = statistics.median(map(abs, off))
        of_memory = statistics.median(map(abs, memory))
        print(json.dumps({
            "date": datetime.date.today().isoformat(),
            "cores": os.cpu_count(),
            "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
            "median_off_by": round(of_step, 4),
            "median_planned_off_by": round(statistics.median(map(abs, off_planned)), 4),
            "median_memory_off_by": round(of_memory, 4),
            "met": {"step": of_step <= MEDIAN_MAX, "memory": of_memory <= MEMORY_MAX},
        }))  # fmt: skip


if __name__ == "__main__":
    main()
