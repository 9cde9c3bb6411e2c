#!/usr/bin/env python3
"""What a machine with a CUDA device tells about penstock, in one command and nine minutes.

Builds what is needed, runs the tests of devices on the real one, compares training on it with
training on the host, and measures, in the order of what parts settle.  Each part has a time limit,
and a part that fails stops no other; what had no time says so.  Writes a JSON line per row, and a
table of them for docs/devices.md.  Where there is no device, the rows that need one say so, and the
tests of devices run on their stand-in.

Needs a Python that has torch (this one, or PENSTOCK_PYTHON), g++ and CMake, and no network:
`make gpu-kit`, on a machine with one, fetches into .gpu-kit what else such a machine may lack.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_decoder import decoder
from gpu_rows import (
    BUILD,
    KIT,
    NEEDS_DEVICE,
    PYTHON,
    ROOT,
    RUN_LIMIT_S,
    CommandError,
    Machine,
    Row,
    call,
    last_json,
)

THROUGH_HOST = {"launch": {"device": "cuda", "transport": "shm"}}
TARGETS = ["runtime_tests", "penstock_program", "penstock_runtime_program", "bench_device"]
DEVICE_TESTS = "*Device*:*Messages.GoFromDeviceToDevice*:AnnouncedLink.*"
SCHEDULES = {"1f1b": 1, "interleaved_1f1b": 2, "zbv": 2}
SIZES = [(2048, 512, 8), (8192, 512, 8), (512, 256, 8)]  # Width, batch, microbatches.


def build(_: Machine) -> Iterator[Row]:
    start = time.monotonic()
    variables = {"PENSTOCK_PYTHON": PYTHON}
    if KIT.is_dir():
        prefix = KIT / "prefix"
        if not (prefix / "lib/cmake/GTest").is_dir():
            folder = KIT / "build"
            options = [f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DCMAKE_INSTALL_LIBDIR=lib"]
            call(["cmake", "-S", KIT / "googletest", "-B", folder, *options], 60)
            call(["cmake", "--build", folder, "--target", "install", "-j", "8"], 120)
        variables["CMAKE_PREFIX_PATH"] = str(prefix)
    call(["./setup.sh", "release"], 120, **variables)
    jobs = call(["./setup.sh", "--jobs"], 10).strip()
    targets = [*TARGETS, "penstock_python"]
    call(["cmake", "--build", BUILD, "-j", jobs, "--target", *targets], 590, **variables)
    yield Row("build", f"{jobs} jobs", f"{time.monotonic() - start:.0f} s")


def device_tests(machine: Machine) -> Iterator[Row]:
    program = BUILD / "bin" / "runtime_tests"
    for device, needed in (("", ""), ("cuda", NEEDS_DEVICE)):
        what = "runtime_tests on " + (device or "the stand-in")
        if needed and machine.devices == 0:
            yield Row("tests", what, why=needed)
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            words = [program, f"--gtest_filter={DEVICE_TESTS}", f"--gtest_output=json:{report}"]
            failure = ""
            try:
                call(words, 280, PENSTOCK_TEST_DEVICE=device, CUBLAS_WORKSPACE_CONFIG=":4096:8")
            except CommandError as error:
                failure = str(error)
            if not report.exists():
                yield Row("tests", what, why=failure or "no report")
                continue
            result = json.loads(report.read_text())
        cases = [case for suite in result["testsuites"] for case in suite["testsuite"]]
        bad = [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")]
        verdict = {"tests": len(cases), "failed": len(bad)}
        yield Row("tests", what, {**verdict, "which": " ".join(bad)} if bad else verdict)


def nccl(machine: Machine) -> Iterator[Row]:
    """NCCL takes two ranks of one device for a mistake, unless each has a name of its own host."""
    if machine.devices == 0:
        yield Row("nccl", "messages from device to device", why=NEEDS_DEVICE)
        return
    for schedule in ("1f1b", "zbv"):
        more = {"schedule": {"name": schedule}}
        losses, said = trained("cuda", 2, more, nccl_on_one=True)
        through_host, _ = trained("cuda", 2, {**more, **THROUGH_HOST})
        figures = {
            "steps": len(losses),
            "last loss": losses[-1],
            "said": said,
            "through host memory": "same" if losses == through_host else through_host[-1],
        }
        yield Row("nccl", f"messages from device to device, {schedule}", figures)


def train_losses(device: str, ranks: int, more: dict) -> list[float]:
    return trained(device, ranks, more)[0]


def by_hand(ranks: int) -> list[dict[str, str]]:
    """The environment of each rank, where nothing starts them, and NCCL takes each for a host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
         "MASTER_PORT": str(port), "NCCL_SOCKET_IFNAME": "lo", "NCCL_HOSTID": f"host{rank}"}
        for rank in range(ranks)
    ]  # fmt: skip


def small_config(device: str, ranks: int, more: dict) -> dict:
    config = {
        "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "seed": 7,
        "model": {"layers": 4, "hidden": 64, "heads": 2, "sequence_length": 32},
        "mesh": {"pipe": ranks, "data": 1},
        "run": {"steps": 10, "eval_batches": 1, "sample_bytes": 4},
        "launch": {"device": device},
    }  # fmt: skip
    for key, value in more.items():
        config[key] = {**config.get(key, {}), **value}
    return config


def trained(
    device: str, ranks: int, more: dict, nccl_on_one: bool = False
) -> tuple[list[float], str]:
    """Its losses, and what it said that it computes on, and what carries its messages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(small_config(device, ranks, more)))
        run = Path(folder) / "run"
        words = [BUILD / "bin" / "penstock", "train", path, "--run", run]
        if nccl_on_one:
            with ThreadPoolExecutor(ranks) as pool:
                list(pool.map(lambda each: call(words, RUN_LIMIT_S, **each), by_hand(ranks)))
        else:
            call(words, RUN_LIMIT_S)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        started = json.loads((run / "events.jsonl").read_text().splitlines()[0])
    return [line["loss"] for line in lines if "loss" in line], started["device"]


def host_against_device(machine: Machine) -> Iterator[Row]:
    for ranks in (1, 2):
        for name, more in (("float", {}), ("bf16", {"bf16": {"enabled": True}})):
            what = f"penstock train, pipe {ranks}, {name}: largest difference of 10 losses"
            if machine.devices == 0:
                yield Row("host against device", what, why=NEEDS_DEVICE)
                continue
            try:
                host = train_losses("cpu", ranks, more)
                there = train_losses("cuda", ranks, more)
                worst = max(abs(a - b) / a for a, b in zip(host, there, strict=True))
                yield Row("host against device", what, f"{worst:.1e}")
            except CommandError as error:
                yield Row("host against device", what, why=str(error))


def failure(machine: Machine) -> Iterator[Row]:
    """How soon the other rank ends when one is killed, with NCCL between them."""
    what = "one of two ranks is killed: the other one ends after"
    if machine.devices == 0:
        yield Row("failure", what, why=NEEDS_DEVICE)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "config.json"
        path.write_text(json.dumps(small_config("cuda", 2, {"run": {"steps": 100000}})))
        ranks = [subprocess.Popen([BUILD / "bin" / "penstock", "train", path, "--run",
                                   folder / "run"], cwd=ROOT, env={**os.environ, **variables},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for variables in by_hand(2)]  # fmt: skip
        try:
            metrics = folder / "run" / "metrics.jsonl"
            end = time.monotonic() + RUN_LIMIT_S
            while not metrics.exists() or len(metrics.read_text().splitlines()) < 20:
                if time.monotonic() > end or any(rank.poll() is not None for rank in ranks):
                    for rank in ranks:
                        rank.kill()
                    raise CommandError("it made no 20 steps: " + ranks[0].communicate()[1][-300:])
                time.sleep(0.05)
            ranks[1].kill()
            start = time.monotonic()
            try:
                said = ranks[0].communicate(timeout=60)[1].strip().splitlines()
            except subprocess.TimeoutExpired:
                raise CommandError("it had not ended after 60 s") from None
            yield Row("failure", what, {"s": round(time.monotonic() - start, 2),
                                        "exit code": ranks[0].returncode,
                                        "said": said[-1][:200] if said else ""})  # fmt: skip
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def ours(*words: object) -> dict:
    return last_json(call([BUILD / "bench" / "bench_device", "--device", "cuda", *map(str, words)],
                          RUN_LIMIT_S))  # fmt: skip


def by_nccl(*words: object) -> dict:
    line = ours("--nccl", *words)
    if "NCCL" not in line["messages"]:
        raise CommandError(f"messages went by {line['messages']}")
    return line


def pipelining(package: str, words: tuple[object, ...], **variables: str) -> dict:
    script = ROOT / "bench" / "peers" / "torch_pipelining.py"
    return last_json(call([PYTHON, "-W", "ignore", script, "--device", "cuda", *map(str, words)],
                          RUN_LIMIT_S, PIPELINING=package, **variables))  # fmt: skip


def torchs(*words: object) -> dict:
    return pipelining("torch.distributed.pipelining", words)


def from_python(*words: object) -> dict:
    paths = [str(BUILD / "python"), os.environ.get("PYTHONPATH", "")]
    return pipelining("penstock.pipelining", words, PYTHONPATH=os.pathsep.join(filter(None, paths)))


def pipeline(machine: Machine) -> Iterator[Row]:
    """Ranks share the device, so a step can be no shorter than that of one rank."""
    for kind, (width, batch, microbatches) in itertools.product(("bf16", "float"), SIZES):
        size = ["--width", width, "--batch", batch, "--microbatches", microbatches]
        size += ["--type", kind, "--steps", 20]
        alone = None
        for ranks, schedule in [(1, "gpipe"), *[(2, name) for name in SCHEDULES], (4, "1f1b")]:
            what = f"d {width} {kind}, {ranks} ranks, {schedule}"
            if machine.devices == 0:
                yield Row("pipeline", what, why=NEEDS_DEVICE)
                continue
            words = [*size, "--ranks", ranks, "--schedule", schedule]
            words += ["--stages-per-rank", SCHEDULES.get(schedule, 1)]
            try:
                alone_or_host = ours(*words)["median_ms"]
            except CommandError as error:
                yield Row("pipeline", what, why=str(error))
                continue
            if ranks == 1:
                alone = alone_or_host
                yield Row("pipeline", what, {"ms": round(alone, 3)})
                continue
            figures = {"ms by host memory": round(alone_or_host, 3)}
            measured = {"ms by NCCL": by_nccl, "from Python": from_python, "torch's": torchs}
            for name, measure in measured.items():
                try:
                    figures[name] = round(measure(*words)["median_ms"], 3)
                except CommandError as error:
                    figures[name] = str(error)
            if alone:
                figures["one rank's"] = round(alone, 3)
            yield Row("pipeline", what, figures)


def overhead(machine: Machine) -> Iterator[Row]:
    for schedule, stages in SCHEDULES.items():
        what = f"d 8, 32 microbatches, 2 ranks, {schedule}: host time of an instruction"
        if machine.devices == 0:
            yield Row("overhead", what, why=NEEDS_DEVICE)
            continue
        try:
            line = ours("--width", 8, "--batch", 32, "--microbatches", 32, "--steps", 50,
                        "--schedule", schedule, "--stages-per-rank", stages)  # fmt: skip
            per = 1e3 * line["host_ms"] / line["instructions"]
            yield Row("overhead", what, {"us": round(per, 2), "step ms": line["median_ms"]})
        except CommandError as error:
            yield Row("overhead", what, why=str(error))


def zero_memory(machine: Machine) -> Iterator[Row]:
    for kind in ("float", "bf16"):
        for stage in range(4):
            what = f"d 4096 {kind}, Adam, 2 replicas, ZeRO {stage}"
            if machine.devices == 0:
                yield Row("memory", what, why=NEEDS_DEVICE)
                continue
            try:
                line = ours("--width", 4096, "--batch", 64, "--microbatches", 1, "--steps", 10,
                            "--ranks", 2, "--data", 2, "--schedule", "gpipe", "--adam",
                            "--type", kind, "--mode", f"zero{stage}")  # fmt: skip
                peak = round(line["peak_device_mb"])
                yield Row("memory", what, {"MB": peak, "ms": round(line["median_ms"], 2)})
            except CommandError as error:
                yield Row("memory", what, why=str(error))


# Parts in the order of their worth, with the seconds after which a part asks for nothing more.
PARTS = [
    (build, 240),
    (device_tests, 100),
    (host_against_device, 60),
    (nccl, 40),
    (failure, 30),
    (decoder, 80),
    (overhead, 30),
    (zero_memory, 60),
    (pipeline, 300),
]


def run(part, limit_s: float, machine: Machine) -> Iterator[Row]:
    name = part.__name__.replace("_", " ")
    start = time.monotonic()
    try:
        for row in part(machine):
            yield row
            if time.monotonic() - start > limit_s:
                yield Row(name, "the rest", why=f"not begun: {limit_s:.0f} s were over")
                return
    except CommandError as error:
        yield Row(name, "all of it", why=str(error))


def table(machine: Machine, rows: list[Row]) -> str:
    day = datetime.date.today().isoformat()
    facts = "; ".join(f"{name} {fact}" for name, fact in machine.facts.items())
    lines = [f"Measured on {day} by `make gpu`: {facts}.", "", "| part | what | figure |"]
    lines += ["|---|---|---|"] + [f"| {row.part} | {row.what} | {row.cell()} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [part.__name__ for part, _ in PARTS]
    parser.add_argument("--part", choices=names, action="append", help="only this one, or these")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--output", type=Path, default=BUILD / "gpu", help="a folder")
    args = parser.parse_args()
    if not shutil.which("cmake"):
        print("gpu: cmake is not here; it builds what is measured", file=sys.stderr)
        return 2
    try:
        machine = Machine.ask()
    except CommandError as error:
        print(f"gpu: {PYTHON} has no torch that answers ({error}); PENSTOCK_PYTHON names another",
              file=sys.stderr)  # fmt: skip
        return 2
    args.output.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    rows: list[Row] = []
    with (args.output / "rows.jsonl").open("w") as file:
        print(json.dumps({"date": datetime.date.today().isoformat(), **machine.facts}), file=file)
        for part, limit_s in PARTS:
            if args.part and part.__name__ not in args.part:
                continue
            left_s = 60 * args.minutes - (time.monotonic() - start_s)
            if left_s <= 0:
                rows.append(
                    Row(part.__name__.replace("_", " "), "all of it", why="no time was left")
                )
                print(json.dumps(vars(rows[-1])), file=file, flush=True)
                continue
            for row in run(part, min(limit_s, left_s), machine):
                rows.append(row)
                print(json.dumps(vars(row)), file=file, flush=True)
                print(f"{row.part}: {row.what}: {row.cell()}", flush=True)
    (args.output / "table.md").write_text(table(machine, rows))
    print(f"gpu: rows in {args.output / 'rows.jsonl'}, a table in {args.output / 'table.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
