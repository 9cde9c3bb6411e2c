"""A run directory as two ranks would have left it, with times that are known.

GPipe with two microbatches; F takes 1 ms, B 2 ms, a message 0.25 ms.  Needs the standard library
only.
"""

from __future__ import annotations

from pathlib import Path

PROGRAMS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1",
    "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1",
)
# Of the computations: from when, in ms.
STARTS = {"0F0": 0, "0F1": 1, "0B0": 5.5, "0B1": 7.5, "1F0": 1.25, "1F1": 2.25, "1B0": 3.25}
STARTS["1B1"] = 5.25
LENGTHS = {"F": 1, "B": 2}
MAKESPAN = 9.5
HEAD = "step,rank,action,start_ns,ready_ns,end_ns,bytes"


def rows_of(
    rank: int, step: int, origin_ms: float, factor: float, longer_ms: dict[str, float]
) -> list[str]:
    rows, now = [], origin_ms

    def add(action: str, start: float, ready: float, end: float) -> None:
        times = ",".join(str(round(1e6 * time)) for time in (start, ready, end))
        rows.append(f"{step},{rank},{action},{times},{64 if 'SEND' in action else 0}")

    for action in PROGRAMS[rank].split(","):
        before = now
        if action in STARTS:
            ready = origin_ms + factor * STARTS[action]
            now = ready + factor * LENGTHS[action[1]] + longer_ms.get(action, 0)
            add(action, before, ready, now)
        else:
            add(action, now, now, now)
    add("finish", now, now, now)
    return rows


def timeline(
    clocks: tuple[int, int] = (5, 5), steps: int = 3, longer_ms: dict[str, float] | None = None
) -> str:
    """The first step takes twice its time.

    longer_ms: by action: what it takes more in step 2.  No start is moved, so it has to be a rank's
    last one.
    """
    lines = ["# penstock timeline 1", "# schedule gpipe(ranks=2, stages=2, microbatches=2)"]
    lines += ["# ranks 2"]
    lines += [f"# rank {rank} pipe {rank} data 0 clock {clocks[rank]}" for rank in range(2)]
    events = []
    for rank in range(2):
        origin = 0.0
        for step in range(1, steps + 1):
            factor = 2 if step == 1 else 1
            longer = longer_ms if step == 2 and longer_ms else {}
            events += rows_of(rank, step, origin, factor, longer)
            origin += factor * MAKESPAN + 1
    return "\n".join([*lines, HEAD, *events, f"# {len(events)} events"]) + "\n"


def write_run(folder: Path, text: str | None = None) -> Path:
    folder.mkdir()
    (folder / "schedule.csv").write_text("\n".join(PROGRAMS) + "\n")
    (folder / "timeline.csv").write_text(timeline() if text is None else text)
    return folder
