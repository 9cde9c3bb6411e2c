#!/usr/bin/env python3
"""Holds `penstock search` against exact optima, which OR-tools' CP-SAT proves.

Random small problems: up to 4 ranks and 8 microbatches, one or two stages per rank, uneven costs, a
latency, a memory limit.  Each is solved by both.  No makespan may be below the proven optimum, and
no lower bound above it.  How often and how nearly the optimum is met is printed.  It fails where
that is in less than 95 % of the proven cases, or where the mean distance is 1 % or more: to the
optimum, or to the search's own lower bound.

    tests/search/oracle_campaign.py [--cases N] [--seed N] [--rounds N] [--seconds S]

PENSTOCK_BUILD: the build folder (default: build/ of this tree).  Needs ortools (pip); exits with 77
where that is absent.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

try:
    from ortools.sat.python import cp_model
except ImportError:
    print("skipped: no ortools here; pip install ortools")
    sys.exit(77)

BUILD = Path(os.environ.get("PENSTOCK_BUILD", Path(__file__).parents[2] / "build")).resolve()
MET_SHARE_MIN = 0.95
DISTANCE_MAX = 0.01
GAP_MAX = 0.01


@dataclass
class Problem:
    """Whole numbers, so that sums are exact on both sides."""

    ranks: int
    per_rank: int
    microbatches: int
    placement: str
    forward: list[int]
    input: list[int]
    weight: list[int]
    latency: int
    memory: int | None  # In activations of single stages.

    @property
    def stages(self) -> int:
        return self.ranks * self.per_rank

    def rank_of(self, stage: int) -> int:
        chunk, at = divmod(stage, self.ranks)
        return self.ranks - 1 - at if self.placement == "v" and chunk % 2 else at


def drawn(rng: random.Random) -> Problem:
    ranks, per_rank = rng.choice([(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2)])
    stages = ranks * per_rank
    even = rng.random() < 0.3

    def costs(low: int, high: int) -> list[int]:
        return (
            [rng.randint(low, high)] * stages
            if even
            else [rng.randint(low, high) for _ in range(stages)]
        )

    return Problem(
        ranks=ranks,
        per_rank=per_rank,
        microbatches=rng.randint(2, 8 if per_rank == 1 else 6),
        placement=rng.choice(["loop", "v"]) if per_rank == 2 else "loop",
        forward=costs(6, 14),
        input=costs(6, 16),
        weight=costs(4, 12),
        latency=rng.choice([0, 0, 1, 3]),
        memory=rng.choice(
            [None, per_rank, 2 * per_rank, ranks * per_rank, rng.randint(per_rank, 8)]
        ),
    )


def optimum(problem: Problem, seconds: float, hint: int) -> tuple[int, bool]:
    """The best makespan that CP-SAT finds, and whether it is proven."""
    model = cp_model.CpModel()
    costs = {"F": problem.forward, "I": problem.input, "W": problem.weight}
    start, interval = {}, {}
    for stage in range(problem.stages):
        for m in range(problem.microbatches):
            for kind, times in costs.items():
                key = kind, stage, m
                start[key] = model.new_int_var(0, hint, "")
                interval[key] = model.new_fixed_size_interval_var(start[key], times[stage], "")
    end = {key: start[key] + costs[key[0]][key[1]] for key in start}
    for kind, stage, m in start:
        key = kind, stage, m
        if m > 0:  # Microbatches that cost the same can be told apart by their order.
            model.add(start[key] >= end[kind, stage, m - 1])
        if kind == "W":
            model.add(start[key] >= end["I", stage, m])
            continue
        if kind == "I":
            model.add(start[key] >= end["F", stage, m])
        before = stage - 1 if kind == "F" else stage + 1
        if 0 <= before < problem.stages:
            away = problem.rank_of(before) != problem.rank_of(stage)
            model.add(start[key] >= end[kind, before, m] + away * problem.latency)
    for rank in range(problem.ranks):
        here = [key for key in start if problem.rank_of(key[1]) == rank]
        model.add_no_overlap([interval[key] for key in here])
        if problem.memory is None:
            continue
        lives = []
        for kind, stage, m in here:
            if kind != "F":
                continue
            length = model.new_int_var(0, hint, "")
            first, last = start["F", stage, m], end["W", stage, m]
            lives.append(model.new_interval_var(first, length, last, ""))
        model.add_cumulative(lives, [1] * len(lives), problem.memory)
    makespan = model.new_int_var(0, hint, "")
    model.add_max_equality(makespan, list(end.values()))
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = os.cpu_count() or 1
    status = solver.solve(model)
    return round(solver.objective_value), status == cp_model.OPTIMAL


def found(problem: Problem, seed: int, rounds: int) -> dict:
    listed = {
        "--forward": problem.forward,
        "--input": problem.input,
        "--weight": problem.weight,
        "--activation": [1] * problem.stages,
    }
    command = [
        *(str(BUILD / "bin" / "penstock"), "search", "--json"),
        *("--ranks", str(problem.ranks), "--microbatches", str(problem.microbatches)),
        *("--stages-per-rank", str(problem.per_rank), "--placement", problem.placement),
        *("--latency", str(problem.latency), "--seed", str(seed), "--rounds", str(rounds)),
    ]
    for option, numbers in listed.items():
        command += [option, ",".join(map(str, numbers))]
    if problem.memory is not None:
        command += ["--memory", str(problem.memory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="of CP-SAT, per case")
    args = parser.parse_args()
    wrong = proven = met = 0
    distances, gaps = [], []
    for case in range(args.cases):
        problem = drawn(random.Random(f"{args.seed} {case}"))
        result = found(problem, args.seed, args.rounds)
        makespan = round(result["makespan"])
        best, is_proven = optimum(problem, args.seconds, makespan)
        gaps.append(result["gap"])
        if is_proven:
            proven += 1
            met += makespan == best
            distances.append(makespan / best - 1)
            if result["lower_bound"] > best + 1e-6 or makespan < best:
                wrong += 1
                print(f"case {case}: WRONG: {result['lower_bound']} > {best}: {problem}")
        if makespan != best:
            print(f"case {case}: {makespan}, {best} is possible: {problem}", flush=True)
        if case % 20 == 19:
            print(f"{case + 1} cases, {proven} proven, {met} met", flush=True)
    share = met / max(1, proven)
    distance = sum(distances) / max(1, len(distances))
    print(f"{args.cases} cases, {proven} proven: met {share:.1%}, mean distance {distance:.3%}")
    gap = sum(gaps) / len(gaps)
    closed = sum(each == 0 for each in gaps)
    print(f"mean gap to the lower bound {gap:.3%}, {closed} called optimal, {wrong} wrong")
    is_near = share >= MET_SHARE_MIN and distance < DISTANCE_MAX and gap < GAP_MAX
    return 0 if is_near and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
