"""What the process tests share: a run of penstock in a folder of its own, and what it leaves.

Needs the standard library only.  Two variables say what is tested:
PENSTOCK_BUILD         the build folder, with bin/ and libexec/ (default: build/ of this tree)
PENSTOCK_TORCH_PYTHON  a Python that can import torch, for torchrun (default: none)
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PENSTOCK_BUILD", ROOT / "build")).resolve()
PENSTOCK = BUILD / "bin" / "penstock"
TORCH_PYTHON = os.environ.get("PENSTOCK_TORCH_PYTHON", "")
SEED = int(os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000))

# Far beyond what anything here takes; a test that gets there has found a hang.
PATIENCE = 120.0
MARK = "PENSTOCK_TEST_MARK"
# What would make a run believe that it is a rank, or look for data elsewhere.
FOREIGN = re.compile(r"(RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC|OMPI_|PMIX_|SLURM_|PENSTOCK_)")

TINY = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.5,
    "seed": 7,
    "model": {"layers": 2, "hidden": 32, "heads": 2, "sequence_length": 16},
    "mesh": {"pipe": 2, "data": 2},
    "run": {"steps": 5, "eval_batches": 1, "sample_bytes": 4},
    "launch": {"heartbeat_seconds": 30, "startup_seconds": 60},
}


def merged(base: dict, changes: dict) -> dict:
    """`base` with `changes`; sections are merged, everything else is replaced."""
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both else value
    return result


def make_text(path: Path, size: int = 40_000) -> Path:
    """Writes the same words on every machine."""
    generator = random.Random(20)
    words = [
        "the",
        "a",
        "river",
        "runs",
        "water",
        "wheel",
        "mill",
        "gate",
        "flow",
        "stone",
        "turns",
        "slow",
        "fast",
        "old",
    ]
    text = ""
    while len(text) < size:
        text += " ".join(generator.choice(words) for _ in range(9)) + ".\n"
    path.write_text(text[:size])
    return path


@dataclass(frozen=True)
class RecordedEvent:
    """A line of timeline.csv."""

    step: int
    rank: int
    action: str
    start_ns: int
    ready_ns: int
    end_ns: int
    bytes: int

    @property
    def own_ms(self) -> float:
        return (self.end_ns - self.ready_ns) / 1e6

    def is_a(self, stage_and_op: str) -> bool:
        return re.fullmatch(stage_and_op + r"\d+", self.action) is not None


def recorded_events(run: Path) -> list[RecordedEvent]:
    lines = (run / "timeline.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("#")]
    numbers = ((int(row[0]), int(row[1]), row[2], *map(int, row[3:])) for row in rows[1:])
    return [RecordedEvent(*fields) for fields in numbers]


# --- Processes ------------------------------------------------------------------------------------


def all_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that are still there, zombies included."""
    return sorted(child for child in all_pids() if stat_of(child)[1:2] == [str(pid)])


def environment_of(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def rank_pids(launcher: int) -> dict[int, int]:
    """The process of each rank among the children of a launcher."""
    ranks = {}
    for pid in children(launcher):
        rank = environment_of(pid).get("RANK")
        if rank is not None:
            ranks[int(rank)] = pid
    return ranks


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int, started: str) -> bool:
    """Whether that process, and not a later one of its number, has not wholly ended."""
    stat = stat_of(pid)
    # The first thread of a process that ends is a zombie while others still hold its files.
    return bool(stat) and stat[19] == started and (stat[0] not in "ZX" or int(stat[17]) > 1)


@dataclass(frozen=True)
class Socket:
    """A row of /proc/net/tcp."""

    inode: int
    local: tuple[str, int]
    remote: tuple[str, int]
    listens: bool
    established: bool


def free_port() -> int:
    """A port at which nobody listens, from below those that the system gives to connections.

    One of theirs may be another process's again before a rank listens there.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(10_000, first) if first > 10_000 else 0
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]


def tcp_sockets() -> dict[int, Socket]:
    sockets = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for row in Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            # An IPv4 address in an IPv6 one ends in the same digits.
            ends = [(end.split(":")[0][-8:], int(end.split(":")[1], 16)) for end in fields[1:3]]
            inode = int(fields[9])
            sockets[inode] = Socket(inode, ends[0], ends[1], fields[3] == "0A", fields[3] == "01")
    return sockets


def open_files(pid: int) -> list[str]:
    """Where the descriptors of a process lead: paths, "socket:[123]" and the like."""
    targets = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            targets.append(str(link.readlink()))
        except OSError:
            continue
    return targets


def socket_inodes(pid: int) -> set[int]:
    matches = (re.fullmatch(r"socket:\[(\d+)\]", target) for target in open_files(pid))
    return {int(match[1]) for match in matches if match}


# --- Runs -----------------------------------------------------------------------------------------


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return self.out + self.err


@dataclass
class Traces:
    """What a run held while it lived, and must not leave behind."""

    listening: set[int] = field(default_factory=set)  # Inodes.
    files: set[str] = field(default_factory=set)  # Opened outside its folder.


class ProcessTest(unittest.TestCase):
    """A fresh folder, and nothing left of what was started in it."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.text = make_text(self.folder / "text.txt")
        self.mark = uuid.uuid4().hex
        self.traces = Traces()
        self.known: dict[int, str] = {}
        self.addCleanup(self.end_all)

    def left(self) -> list[int]:
        """The live processes that inherited this test's mark, whoever their parent is now."""
        for pid in all_pids():
            if pid not in self.known and environment_of(pid).get(MARK) == self.mark:
                self.known[pid] = (stat_of(pid) + [""] * 20)[19]
        return [pid for pid, started in self.known.items() if is_alive(pid, started)]

    def end_all(self) -> None:
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        return {**kept, "TMPDIR": str(self.temporary), MARK: self.mark, **variables}

    def config(self, name: str = "tiny.json", **changes: object) -> Path:
        """The tiny config on this test's text, with changes to it."""
        path = self.folder / name
        values = merged(merged(TINY, {"data": {"path": str(self.text)}}), changes)
        path.write_text(json.dumps(values, indent=1))
        return path

    def start(
        self,
        *words: object,
        environment: dict[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> Started:
        """`before` is called in the new process, ahead of the program."""
        texts = [str(word) for word in words]
        return Started(self, texts, environment or self.environment(), before)

    def run_words(self, *words: object, environment: dict[str, str] | None = None) -> Result:
        return self.start(*words, environment=environment).wait()

    def train(self, config: Path, *words: object, **environment: str) -> Result:
        return self.run_words(
            PENSTOCK, "train", config, *words, environment=self.environment(**environment)
        )

    def start_train(self, config: Path, run: str, *words: object) -> Started:
        started = self.start(PENSTOCK, "train", config, "--run", run, *words)
        started.directory = self.folder / run
        return started

    def assert_code(self, result: Result, code: int) -> None:
        self.assertEqual(result.code, code, f"output:\n{result.text[-4000:]}")

    def assert_nothing_left(self, within: float = 0.5) -> None:
        """No process, listening socket or temporary file of this test's runs is left."""
        deadline = time.monotonic() + within
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        self.assertEqual(left, [], f"processes are left: {names}")
        still = [s for i, s in tcp_sockets().items() if s.listens and i in self.traces.listening]
        self.assertEqual(still, [], "ports are left open")
        names = [path.name for path in self.folder.rglob("*")]
        temporary = [n for n in names if ".tmp" in n or "rendezvous" in n or "probe" in n]
        self.assertEqual(temporary, [], "temporary files are left in the run directory")
        # torchrun leaves an empty folder for its logs.
        in_temporary = [p for p in self.temporary.iterdir() if "torchelastic_" not in p.name]
        self.assertEqual(in_temporary, [], "files are left in TMPDIR")
        outside = [path for path in self.traces.files if Path(path).exists()]
        self.assertEqual(outside, [], "files are left outside the run directory")

    def note_traces(self, pids: list[int]) -> None:
        """Remembers what these processes hold now, for assert_nothing_left."""
        self.left()
        sockets = tcp_sockets()
        for pid in pids:
            for inode in socket_inodes(pid):
                if inode in sockets and sockets[inode].listens:
                    self.traces.listening.add(inode)
            for path in open_files(pid):
                away = path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/", "/run/"))
                if away and not path.startswith(str(self.folder)):
                    self.traces.files.add(path)


class Started:
    """A program that was started and has not been waited for."""

    def __init__(
        self,
        test: ProcessTest,
        words: list[str],
        environment: dict[str, str],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.test = test
        self.directory = test.folder
        self.began = time.monotonic()
        self.out = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.err = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        test.addCleanup(self.out.close)
        test.addCleanup(self.err.close)
        self.process = subprocess.Popen(
            words,
            cwd=test.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            # A shell that runs this in the background may have these ignored.
            preexec_fn=lambda: [*(signal.signal(s, signal.SIG_DFL) for s in _STOPS), before()],
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, patience: float = PATIENCE) -> Result:
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.test.end_all()
            self.process.wait()
            raise AssertionError(f"not over after {patience} s:\n{self.output()}") from None
        seconds = time.monotonic() - self.began
        return Result(code, _read(self.out), _read(self.err), seconds)

    def output(self) -> str:
        return _read(self.out) + _read(self.err)

    def await_step(self, step: int, patience: float = PATIENCE) -> None:
        """Until metrics.jsonl has a line for that step."""
        deadline = time.monotonic() + patience
        while len(raw_lines(self.directory)) < step:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"step {step} was not reached:\n{self.output()}")
            time.sleep(0.01)

    def await_text(self, text: str, times: int = 1, patience: float = PATIENCE) -> None:
        """Until the run has said that so often."""
        deadline = time.monotonic() + patience
        while self.output().count(text) < times:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} was not said {times} times:\n{self.output()}")
            time.sleep(0.01)

    def ranks(self) -> dict[int, int]:
        return rank_pids(self.pid)

    def await_end_of_all(self, patience: float = PATIENCE) -> float:
        """Waits until no process of this test is left; returns the monotonic time of that."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            self.process.poll()
            if not self.test.left():
                return time.monotonic()
            time.sleep(0.02)
        raise AssertionError(f"not over after {patience} s:\n{self.output()}")


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def _read(file) -> str:
    # By its own descriptor's offset the child still writes: a fresh one reads from the start.
    with Path(f"/proc/self/fd/{file.fileno()}").open(errors="replace") as again:
        return again.read()


# --- What a run writes ----------------------------------------------------------------------------


def raw_lines(directory: Path) -> list[str]:
    """The finished lines of metrics.jsonl."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def losses(directory: Path) -> list[tuple[str, str, str]]:
    """What must not differ between equal runs, as the texts that were written."""
    keys = ("loss", "val_loss", "grad_norm")
    rows = []
    for line in raw_lines(directory):
        values = json.loads(line, parse_float=str, parse_int=str)
        rows.append((values["step"], *(values.get(key, "") for key in keys)))
    return rows


# Of lines that come where a machine is slow.
PROGRESS = (
    *("bounds of layouts: ", "simulating layouts: ", "cutting stages of ", "what would fit: "),
    *("evaluate: reading ", "evaluate: building ", "evaluate: evaluating"),
    *("generate: reading ", "generate: building "),
)


def root_causes(text: str) -> list[str]:
    """The lines that say why a run ended."""
    said = ("stopping", "pipe(", "resumed", "starting the run", " saved: ", "costs have changed")
    said += PROGRESS
    lines = [line[10:] for line in text.splitlines() if line.startswith("penstock: ")]
    return [line for line in lines if not any(word in line[:40] for word in said)]
