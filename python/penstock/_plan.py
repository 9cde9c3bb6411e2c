"""Layouts of a model on so many ranks: what `penstock plan` answers, as values.

The program in the package decides; a question is one run of it.  Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import _arguments, _program
from penstock.errors import ConfigError, Error

__all__ = ["Candidate", "Plan", "plan"]

_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Candidate:
    """A layout whose memory fits, and what a step of it takes.  Units: seconds, bytes.

    number: from 1 on, the fastest first.
    microbatch: samples of one; microbatches: of a step and replica.
    recompute_interval: layers that are computed again together; 0: none are.
    recompute: "none", "selective" or "full".
    in_files: "", "states" or "states and parameters": what is in files while it is not used.
    bounds: the first layer of each stage, and the number of layers.
    step: of the simulation; parts: where it goes, which adds up to it.
    peak: the most memory of each pipeline rank; peak_at: the action, or "update", at which.
    bound_by: the largest part beside the compute where it is 5 % of the step, else "compute".
    on_frontier: no candidate is both faster and smaller.
    equals: other layouts that take as long and as much.
    tensor, context, expert: ranks that share weights, the tokens of a sample, experts.
    shard: ranks among which ZeRO cuts.
    not_yet: what no run can have of it so far; empty: `penstock train` takes it.
    """

    number: int
    pipe: int
    data: int
    zero: int
    schedule: str
    stages_per_rank: int
    microbatches: int
    microbatch: int
    recompute_interval: int
    recompute: str
    in_files: str
    bounds: list[int]
    step: float
    parts: dict[str, float]
    samples_per_second: float
    tokens_per_second: float
    peak: list[int]
    peak_at: list[str]
    bound_by: str
    on_frontier: bool
    equals: list[str]
    tensor: int = 1
    context: int = 1
    expert: int = 1
    shard: int = 1
    not_yet: Sequence[str] = ()


class Plan(Sequence[Candidate]):
    """Candidates, the fastest first.  A notebook shows them as points of time against memory.

    layouts: how many have these sizes; simulated: how many of them were.
    too_large: those that were found on the way and do not fit, with "layout", and the least
        "step" and "peak" that it has.
    """

    def __init__(self, question: _Question) -> None:
        self._question = question
        answer = json.loads(question.ask("--format", "json"))
        self.candidates = [
            Candidate(number=number, **each) for number, each in enumerate(answer["candidates"], 1)
        ]
        self.layouts: int = answer["layouts"]
        self.simulated: int = answer["simulated"]
        self.too_large: list[dict[str, Any]] = answer["too_large"]

    def __len__(self) -> int:
        return len(self.candidates)

    def __getitem__(self, index: Any) -> Any:
        return self.candidates[index]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def frontier(self) -> list[Candidate]:
        """The candidates that nothing beats in both time and memory."""
        return [each for each in self.candidates if each.on_frontier]

    def explain(self, number: int) -> str:
        """Candidate `number`'s step in its parts, beside the first one's."""
        text = self._question.ask("--explain", self._number(number))
        return text[text.rindex("\ncandidate ") + 1 :]

    def configuration(self, number: int = 1) -> dict[str, Any]:
        """The configuration with the layout of candidate `number`, complete, to be written as JSON.

        `penstock train` takes it.
        """
        with tempfile.TemporaryDirectory(prefix="penstock-plan-") as folder:
            path = Path(folder, "planned.json")
            self._question.ask("--explain", self._number(number), "--write", path)
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values

    def to_svg(self) -> str:
        """The picture of times against memory."""
        return self._question.ask("--format", "svg")

    def to_html(self) -> str:
        """One page: that picture, the table, and a timeline of each candidate of the frontier."""
        return self._question.ask("--format", "html")

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        return self._question.ask()

    def __repr__(self) -> str:
        best = self.candidates[0]
        return (
            f"<Plan of {len(self)} candidates: the first is pipe {best.pipe} x data {best.data}, "
            f"ZeRO {best.zero}, {best.schedule}, {best.step:.6g} s>"
        )

    def _number(self, number: int) -> int:
        if 1 <= _arguments.integer("number", number) <= len(self):
            return number
        raise ConfigError(f"number is {number}, must be from 1 to {len(self)}")


class _Question:
    """The words of one `penstock plan`, and the files that they name.  They live as long as it."""

    def __init__(self, config: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-plan-")
        self._is_file = not isinstance(config, Mapping)
        self.config = self.file("config.json")
        if isinstance(config, Mapping):
            self.config.write_text(json.dumps(config), encoding="utf-8")
        else:
            self.config = Path(config)
        self.words: list[str] = []

    def file(self, name: str) -> Path:
        return Path(self._folder.name, name)

    def measure(self, sizes: Sequence[int], tensor: Sequence[int], is_device: bool) -> Path:
        """What single layers take, as a file."""
        layers = self.file("layers.json")
        words = ["--microbatch-sizes", _numbers(sizes), "--tensor", _numbers(tensor)]
        if is_device:
            words += ["--set", "launch.device=cuda"]
        self.run("memory", self.config, "--layers", layers, *words)
        return layers

    def ask(self, *words: object) -> str:
        return self.run("plan", self.config, *self.words, *words)

    def run(self, *words: object) -> str:
        """Its standard output.  Raises Error or ConfigError with its message."""
        said = [str(word) for word in words]
        try:
            environment = _program.environment(said)
            done = subprocess.run(
                [str(_program.PROGRAM), *said],
                env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
        except (ImportError, OSError) as error:
            raise Error(f"plan: cannot run {_program.PROGRAM}: {error}") from error
        if done.returncode != 0:
            raise self._error(done.stderr.decode(errors="replace"), done.returncode)
        return done.stdout.decode(errors="replace")

    def _error(self, text: str, code: int) -> Error:
        if not self._is_file:  # The user knows no such file.
            text = text.replace(str(self.config), "config")
        lines = text.strip().splitlines() or [f"plan: the program ended with {code}"]
        message = re.sub(r"^penstock: ", "", lines[0])
        notes = tuple(line.strip().removeprefix("note: ") for line in lines[1:])
        kind = ConfigError if code == ConfigError("").exit_code else Error
        return kind(message, notes)


def _numbers(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))


def plan(
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    world: int,
    memory: int | str | None = None,
    device: str | os.PathLike[str] | None = None,
    flops: float | None = None,
    bandwidth: float | None = None,
    costs: str | os.PathLike[str] | None = None,
    link: str | None = None,
    ranks_per_node: int | None = None,
    cores_per_node: int | None = None,
    crowding: float | None = None,
    layers: str | os.PathLike[str] | None = None,
    microbatch_sizes: Sequence[int] | None = None,
    tensor: Sequence[int] | None = None,
    zero: Sequence[int] = (0, 1, 2, 3),
    recompute: bool = True,
    offload: str | None = None,
    top: int = 10,
) -> Plan:
    """The layouts of a model on so many ranks, the fastest first, as far as their memory fits.

    config: of `penstock train`, a mapping or a file; its own layout is read only with `costs`.
    world: ranks, of all axes.  memory: of each rank, bytes or a text such as "80GB";
        None: what `device` has.
    device: a name such as "h100-sxm", or a file of figures: speeds, memory, links, ranks per node.
    flops, bandwidth: operations per second that a layer reaches; bytes per second of the memory.
    costs: a file that `penstock report` fitted to a run of `config`, in their place.
    link: "intra=300GB/s:5us,inter=25GB/s:10us"; None: that of `costs`, else messages take no time.
    ranks_per_node: None: all ranks are on one.
    cores_per_node: that ranks of a node compute on and share; None: a device each.
    crowding: how much longer computations take while ranks share a core.
    layers: a file of `penstock memory --layers`; None: found now, which needs torch.
    microbatch_sizes: samples, to choose from; None: those of `layers`, or 1, 2, 4 and 8.
    tensor: numbers of ranks that share layers; None: those of `layers`, or 1, 2, 4 and 8, and with
        `costs` or `cores_per_node` 1.
    zero: stages to choose from.  recompute: whether activations may be computed again.
    offload: "DIR=SPEED", such as "/scratch=3GB/s": layouts with files in DIR are tried, too.
    top: candidates to find.

    Raises ConfigError for what does not fit, and Error where no layout does, which says what would.
    """
    question = _Question(config)
    found = layers
    if found is None:
        is_whole = costs is not None or cores_per_node is not None
        sharers = tensor or ((1,) if is_whole else _SIZES)
        found = question.measure(microbatch_sizes or _SIZES, sharers, device is not None)
    options = {
        "--world": _arguments.integer("world", world),
        "--memory": memory if isinstance(memory, str | None) else f"{int(memory)}B",
        "--device": None if device is None else os.fspath(device),
        "--flops": None if flops is None else _arguments.number("flops", flops),
        "--bandwidth": None if bandwidth is None else _arguments.number("bandwidth", bandwidth),
        "--costs": None if costs is None else os.fspath(costs),
        "--link": link,
        "--ranks-per-node": _arguments.optional_integer("ranks_per_node", ranks_per_node),
        "--cores-per-node": _arguments.optional_integer("cores_per_node", cores_per_node),
        "--crowding": None if crowding is None else _arguments.number("crowding", crowding),
        "--offload": offload,
        "--layers": os.fspath(found),
        "--microbatch-sizes": _numbers(microbatch_sizes) if microbatch_sizes else None,
        "--tensor": _numbers(tensor) if tensor else None,
        "--zero": _numbers(zero),
        "--top": _arguments.integer("top", top),
    }
    # One word each, so that a value that begins with a dash is still a value.
    question.words = [f"{name}={each}" for name, each in options.items() if each is not None]
    if not recompute:
        question.words.append("--no-recompute")
    return Plan(question)
