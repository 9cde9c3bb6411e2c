"""The command line of penstock.board."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock import _standard_streams
from penstock._foreign_files import read_foreign
from penstock._printable import printable
from penstock.board._stream import Line, Metrics, Samples
from penstock.board._writers import TAGS, Tables, TensorBoard, WeightsAndBiases, Writer
from penstock.errors import Error

_PAUSE = 1.0  # Seconds between two looks at a run that goes on.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.board",
        description="Writes a run's metrics for a board.  See docs/run_directory.md.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory of penstock train")
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="event files; without another choice, RUN/tensorboard",
    )
    parser.add_argument(
        "--wandb", metavar="PROJECT", help="an offline run of Weights & Biases, in RUN/wandb"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="DIR", help="steps.csv, validations.csv, samples.csv"
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on until the run has ended, or Ctrl-C"
    )
    return parser


def _writers(options: argparse.Namespace) -> dict[str, Writer]:
    """Writers by where they write."""
    writers: dict[str, Writer] = {}
    if options.csv:
        writers[str(options.csv)] = Tables(options.csv)
    if options.wandb:
        writers[str(options.run / "wandb")] = WeightsAndBiases(options.run, options.wandb)
    if options.tensorboard or not writers:
        folder = options.tensorboard or options.run / "tensorboard"
        writers[str(folder)] = TensorBoard(folder)
    return writers


def _write(lines: list[Line], texts: list[tuple[int, str]], writers: Sequence[Writer]) -> None:
    for line in lines:
        # A number that JSON cannot hold is a text: "inf", "nan".
        values = {TAGS[key]: float(value) for key, value in line.items() if key in TAGS}
        for writer in writers:
            writer.write(line["step"], values)
    for step, text in texts:
        for writer in writers:
            writer.write_text(step, text)
    for writer in writers:
        writer.flush()


def _has_ended(run: Path) -> bool:
    """Whether the run has ended, by the last of its events that can be read."""
    last: object = None
    events = run / "events.jsonl"
    for line in read_foreign(events).splitlines() if events.exists() else []:
        try:
            last = json.loads(line).get("event", last)
        except (ValueError, AttributeError):
            continue
    return last in {"finished", "stopped"}


def _copy(options: argparse.Namespace) -> str:
    metrics, samples = Metrics(options.run), Samples(options.run)
    writers = _writers(options)
    count = 0
    try:
        while True:
            ended = _has_ended(options.run)  # Asked before the lines: none comes after it.
            lines = metrics.new_lines()
            _write(lines, samples.new_texts(), list(writers.values()))
            count += len(lines)
            if ended or not options.follow:
                break
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        pass
    for writer in writers.values():
        writer.close()
    return f"{count} lines of {options.run} -> {', '.join(writers)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 2 for what the user can mend; 1 for a file (docs/exit_codes.md)."""
    _standard_streams.open_missing()
    try:
        summary = _copy(_parser().parse_args(arguments))
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(printable(f"penstock: {error.filename}: {error.strerror}"), file=sys.stderr)
        return 1
    return _standard_streams.say(summary)
