"""The same run under every launcher, and who talks to whom in it.  Needs the standard library.

Takes over 10 s: runs of four ranks and more, and torchrun, which imports torch itself.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import unittest
from typing import ClassVar

import support
from support import PENSTOCK, ProcessTest, losses

# One write, so that the lines of two ranks cannot mix in the pipe that they share.
SHOW = (
    "import os; os.write(1, ('|'.join(os.environ.get(n, '-') for n in "
    "('RANK','LOCAL_RANK','WORLD_SIZE','LOCAL_WORLD_SIZE','MASTER_ADDR','MASTER_PORT'))"
    " + chr(10)).encode())"
)


@functools.cache
def torch_python() -> str:
    """A Python with torchrun; the empty text when there is none."""
    python = support.TORCH_PYTHON
    if not python or not shutil.which(python):
        return ""
    asked = subprocess.run([python, "-c", "import torch.distributed.run"], capture_output=True)
    return python if asked.returncode == 0 else ""


class SameLosses(ProcessTest):
    expected: ClassVar[list[tuple[str, str, str]]] = []  # Of the first case's own run.

    def setUp(self) -> None:
        super().setUp()
        self.tiny = self.config()
        if not self.expected:
            self.assert_code(self.train(self.tiny, "--run", "own"), 0)
            self.expected.extend(losses(self.folder / "own"))
        self.assertEqual(len(self.expected), 6, "5 steps and a validation")

    def assert_same(self, run: str) -> None:
        self.assertEqual(losses(self.folder / run), self.expected)
        self.assert_nothing_left(within=3)

    def test_own_launcher_twice(self) -> None:
        self.assert_code(self.train(self.tiny, "--run", "again", "--nproc", 4), 0)
        self.assert_same("again")

    def torchrun(self, run: str, *options: str) -> None:
        python = torch_python()
        if not python:
            self.skipTest("no Python with torch; name one with PENSTOCK_TORCH_PYTHON")
        words = (python, "-m", "torch.distributed.run", "--nproc-per-node", "4", *options)
        # Without the "--", torchrun takes a "--run" that follows for one of its own options.
        result = self.run_words(
            *words, "--no-python", "--", PENSTOCK, "train", self.tiny, "--run", run
        )
        self.assert_code(result, 0)
        self.assert_same(run)

    def test_torchrun(self) -> None:
        self.torchrun("torchrun", "--master-port", str(support.free_port()))

    def test_torchrun_standalone(self) -> None:
        self.torchrun("standalone", "--standalone")

    def test_open_mpi(self) -> None:
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun on this machine")
        result = self.run_words(
            *("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4"),
            *(PENSTOCK, "train", self.tiny, "--run", "mpi"),
        )
        self.assert_code(result, 0)
        self.assert_same("mpi")

    def test_variables_set_by_hand(self) -> None:
        port = str(support.free_port())
        started = []
        for rank in range(4):
            variables = self.environment(
                RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            )
            words = (PENSTOCK, "train", self.tiny, "--run", "hand")
            started.append(self.start(*words, environment=variables))
        for process in started:
            self.assert_code(process.wait(), 0)
        self.assert_same("hand")


class Launch(ProcessTest):
    def launch(self, nproc: int, *words: object) -> support.Result:
        return self.run_words(PENSTOCK, "launch", "--nproc", nproc, *words)

    def test_gives_each_rank_its_variables(self) -> None:
        result = self.launch(2, "--", "python3", "-c", SHOW)
        self.assert_code(result, 0)
        rows = sorted(line.split("|") for line in result.out.splitlines())
        self.assertEqual([row[:5] for row in rows], [[r, r, "2", "2", "127.0.0.1"] for r in "01"])
        self.assertEqual(rows[0][5], rows[1][5], "one port for both")
        self.assertTrue(0 < int(rows[0][5]) < 65536)

    def test_writes_a_log_per_rank(self) -> None:
        result = self.launch(2, "--log-dir", "logs", "--", "python3", "-c", SHOW)
        self.assert_code(result, 0)
        logs = [(self.folder / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
        self.assertEqual([log.split("|")[0] for log in logs], ["0", "1"])

    def test_exits_with_the_code_of_the_rank_that_failed(self) -> None:
        code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(60)"
        result = self.launch(3, "--", "python3", "-c", code)
        self.assert_code(result, 7)
        self.assertEqual(len(support.root_causes(result.err)), 1, result.err)
        self.assertIn("rank 1 exited 7", result.err)
        self.assertLess(result.seconds, 10)
        self.assert_nothing_left()

    def test_passes_words_on_as_they_are(self) -> None:
        code = "import sys; print(sys.argv[1:])"
        words = ["--nproc", "x y", "", "--help", "--", "-v"]
        result = self.launch(1, "--", "python3", "-c", code, *words)
        self.assert_code(result, 0)
        self.assertEqual(result.out.strip(), repr(words))

    def test_ends_children_of_a_rank_that_ends(self) -> None:
        code = "import subprocess; subprocess.Popen(['sleep', '300'])"
        self.assert_code(self.launch(2, "--", "python3", "-c", code), 0)
        self.assert_nothing_left()


class Sizes(ProcessTest):
    def test_sixteen_ranks_on_few_cores(self) -> None:
        config = self.config(
            train_batch_size=16, mesh={"pipe": 8, "data": 2}, model={"layers": 6, "hidden": 16}
        )
        result = self.train(config, "--run", "sixteen")
        self.assert_code(result, 0)
        self.assertEqual(len(losses(self.folder / "sixteen")), 6)
        self.assert_nothing_left()
        print(f"16 ranks, 5 steps: {result.seconds:.1f} s")


class Sockets(ProcessTest):
    """Established TCP connections, seen from outside."""

    def connections(
        self, pipe: int, data: int, transport: str = "gloo"
    ) -> dict[tuple[int, int], int]:
        """How many sockets each rank has to each other one, rank 0's store included."""
        config = self.config(
            mesh={"pipe": pipe, "data": data},
            run={"steps": 100_000},
            model={"layers": 4},
            launch={"transport": transport},
        )
        run = self.start_train(config, f"{pipe}x{data}-{transport}")
        run.await_step(3)
        pids = run.ranks()
        sockets = support.tcp_sockets()
        owner = {}
        for rank, pid in pids.items():
            for inode in support.socket_inodes(pid):
                if inode in sockets and sockets[inode].established:
                    owner[sockets[inode].local, sockets[inode].remote] = rank
        counts: dict[tuple[int, int], int] = {}
        for (local, remote), rank in owner.items():
            peer = owner.get((remote, local), -1)
            counts[rank, peer] = counts.get((rank, peer), 0) + 1
        run.process.terminate()
        self.assert_code(run.wait(), 75)
        self.assert_nothing_left()
        print(f"sockets of {pipe} x {data}, (rank, peer): {dict(sorted(counts.items()))}")
        self.assertNotIn(-1, {peer for _, peer in counts}, "a peer that is no rank of the run")
        return counts

    def test_two_by_two_has_none_between_data_strangers(self) -> None:
        counts = self.connections(2, 2)
        # A pipeline is 0-2 and 1-3, and a stage's replicas are 0-1 and 2-3: messages and sums of
        # two ranks share a connection.  Each rank is a client of rank 0's store.
        link, store = 1, 1
        self.assertEqual(
            counts,
            both_ways(
                {
                    (0, 2): link + store,
                    (1, 3): link,
                    (0, 1): link + store,
                    (2, 3): link,
                    (0, 3): store,
                }
            )
            | {(0, 0): 2 * store},
        )

    def test_shared_memory_has_none_for_messages(self) -> None:
        counts = self.connections(2, 1, "auto")
        store = 1
        self.assertEqual(counts, both_ways({(0, 1): store}) | {(0, 0): 2 * store})

    def test_a_pipeline_of_four_has_one_between_every_two(self) -> None:
        counts = self.connections(4, 1)
        link, store = 1, 1
        pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
        expected = {(a, b): link + store * (a == 0) for a, b in pairs}
        self.assertEqual(counts, both_ways(expected) | {(0, 0): 2 * store})


def both_ways(counts: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    return counts | {(b, a): count for (a, b), count in counts.items()}


if __name__ == "__main__":
    unittest.main(verbosity=2)
