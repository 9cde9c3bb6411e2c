"""One run of `penstock train` on two hosts, and what the network between them may do to it.

network_test.py has one case of each kind of harm, network_soak.py many.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import comebacks
import hosts
import packet_route
import support
from support import PENSTOCK, raw_lines

HEARTBEAT_SECONDS = 5
# What a rank may take to end once its peer cannot be reached: it may be in a phase with a longer
# deadline, and a connection that is cut in the last moment is noticed by the next.
OTHER_SECONDS = 15
END_SECONDS_MAX = 2 * (HEARTBEAT_SECONDS + OTHER_SECONDS)
HARMS = ("down", "pause", "slow", "reset", "half_open", "silent", "late", "save")
STEPS = {"slow": 3, "late": 6}


@dataclass(frozen=True)
class Layout:
    """How two ranks train, one on each host."""

    pipe: int
    data: int
    zero: int
    transport: str

    def changes(self) -> dict[str, object]:
        return {
            "mesh": {"pipe": self.pipe, "data": self.data},
            "zero_optimization": {"stage": self.zero},
            "launch": {
                "transport": self.transport,
                "heartbeat_seconds": HEARTBEAT_SECONDS,
                "startup_seconds": OTHER_SECONDS,
                "disk_seconds": OTHER_SECONDS,
            },
        }


LAYOUTS = [
    Layout(pipe, data, zero, transport)
    for pipe, data, zero in ((2, 1, 0), (1, 2, 0), (1, 2, 2), (1, 2, 3))
    for transport in ("tcp", "gloo")
]


class NetworkTest(comebacks.ComebackTest):
    """A run on two hosts; whatever happens, both are removed in the end."""

    was_harmed = True
    note = ""

    def network_config(self, layout: Layout, steps: int) -> Path:
        changes = support.merged(
            layout.changes(),
            {
                "run": {"steps": steps},
                "checkpoint": {"save_interval": 5, "keep_last": 0},
                "steps_per_print": 1000,
            },
        )
        return self.training(**changes)

    def made(self, two: hosts.Hosts) -> hosts.Hosts:
        self.addCleanup(two.remove)
        try:
            two.make()
        except hosts.UnavailableError as missing:
            self.skipTest(str(missing))
        return two

    def start_ranks(
        self, two: hosts.Hosts, config: Path, run: str, *words: object
    ) -> list[support.Started]:
        ranks = []
        for rank in range(2):
            variables = self.environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                MASTER_ADDR=hosts.MASTER,
                MASTER_PORT=hosts.PORT,
            )
            address = (hosts.MASTER, hosts.OTHER)[rank]
            command = (PENSTOCK, "train", config, "--run", run, "--host", address, *words)
            ranks.append(self.start(*two.on(rank), *command, environment=variables))
            ranks[-1].directory = self.folder / run
        return ranks

    def ends_of(self, ranks: list[support.Started]) -> list[support.Result]:
        """None hangs."""
        until = time.monotonic() + END_SECONDS_MAX
        return [rank.wait(max(1.0, until - time.monotonic())) for rank in ranks]

    def assert_clear_errors(self, results: list[support.Result]) -> None:
        """Each rank ends with an error that says which rank it waited for or lost."""
        for rank, result in enumerate(results):
            self.assertIn(result.code, (4, 5), f"rank {rank}:\n{result.text}")
            causes = support.root_causes(result.text)
            self.assertEqual(len(causes), 1, f"rank {rank} has one error:\n{result.text}")
            peer, address = 1 - rank, re.escape((hosts.OTHER, hosts.MASTER)[rank])
            # Also by the end of its key in the store, "handshake/1/0".
            named = rf'ranks? {peer}\b|{address}|/{peer}( has read)?" in the store'
            self.assertRegex(result.text, named, f"rank {rank} names its peer")

    def assert_course(self, whole: Path, run: Path) -> None:
        """As many steps as there are, bit for bit."""
        found = comebacks.course_of(run) if raw_lines(run) else []
        self.assertEqual(found, comebacks.course_of(whole)[: len(found)])

    def assert_sound(self, results: list[support.Result], whole: Path, run: Path) -> bool:
        """It has ended as if nothing had happened, or with clear errors; whether the former."""
        is_whole = all(result.code == 0 for result in results)
        if is_whole:
            self.assert_same(whole, run)
        else:
            self.assert_course(whole, run)
            self.assert_clear_errors(results)
        return is_whole

    def goes_on(self, config: Path, whole: Path, run: Path) -> None:
        """Its checkpoints are whole, and on a sound network it ends as if nothing had happened."""
        if any((run / "checkpoints").glob("step-????????")):
            self.assert_code(self.checkpoint("verify", run), 0)
        two = self.made(hosts.Cable())
        for rank in (ranks := self.start_ranks(two, config, run.name, "--resume", "auto")):
            self.assert_code(rank.wait(), 0)
        self.assertEqual(len(ranks), 2)
        self.assert_same(whole, run)
        left = [path.name for path in (run / "checkpoints").iterdir() if "." in path.name]
        self.assertEqual(left, [], "unfinished checkpoints")

    def harm(self, kind: str, layout: Layout, generator: random.Random) -> str:
        """One run to which that happens; how it ended."""
        config = self.network_config(layout, STEPS.get(kind, 100))
        whole = self.undisturbed(config)
        run = self.folder / "run"
        if kind in ("reset", "half_open", "silent", "late"):
            results = self.on_a_route(kind, config, generator)
        else:
            results = self.on_a_cable(kind, config, generator)
        if kind == "slow":
            for result in results:
                self.assert_code(result, 0)
        is_whole = self.assert_sound(results, whole, run)
        if kind in ("down", "save"):
            self.assertFalse(is_whole, "the run was over before the cable was pulled")
        if not is_whole:
            self.goes_on(config, whole, run)
        self.assert_nothing_left()
        if not self.was_harmed:
            return "finished before the fault"
        return "finished" if is_whole else "ended with errors and went on"

    def on_a_route(self, kind: str, config: Path, generator: random.Random) -> list[support.Result]:
        # One of the first connections is the store's, later ones have the messages.
        fault = packet_route.Fault(
            kind,
            connection=generator.randrange(4),
            at_bytes=int(10 ** generator.uniform(0, 4.8)),
            seconds=generator.uniform(0.02, 0.1),
        )
        route = packet_route.Route(fault)
        self.made(route)
        results = self.ends_of(self.start_ranks(route, config, "run"))
        met = "none" if route.harmed is None else route.connections[route.harmed].number
        self.note = f"{fault}, met connection {met} of {len(route.connections)}"
        self.was_harmed = route.harmed is not None
        return results

    def on_a_cable(self, kind: str, config: Path, generator: random.Random) -> list[support.Result]:
        two = hosts.Cable()
        self.made(two)
        if kind == "slow":
            two.slow_down("1mbit")
            ranks = self.start_ranks(two, config, "run")
            return [rank.wait() for rank in ranks]
        ranks = self.start_ranks(two, config, "run")
        host, step = generator.randrange(2), generator.randint(1, 60)
        self.note = f"host {host}, after step {step}"
        ranks[0].await_step(step)
        if kind == "save":
            checkpoints = self.folder / "run" / "checkpoints"
            while not any(checkpoints.glob("*.saving")) and ranks[0].process.poll() is None:
                time.sleep(0.0005)
        time.sleep(generator.uniform(0, 0.02))
        two.set_up(host, False)
        if kind == "pause":
            time.sleep(generator.uniform(0.1, 0.4) * HEARTBEAT_SECONDS)
            two.set_up(host, True)
        return self.ends_of(ranks)
