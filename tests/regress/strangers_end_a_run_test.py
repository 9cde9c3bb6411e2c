"""One stray connection ended a run over tcp, which is what "auto" takes between hosts.

TensorPipe took the first bytes of any connection for a length, and threw in its own thread when
there was no memory for so much: `GET / HTTP/1.0` of a health check was enough.  Here strangers call
at every listening socket of every rank, from its first moment to the end of the run.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest
import support
from support import ProcessTest, losses

STEPS = 150
# Rank 0's store, and the socket of each of four ranks, and Gloo's where it is asked for.
SOCKETS = {"tcp": 5, "gloo": 9}
SILENCE_S = 60


class Strangers(threading.Thread):
    """Calls at whatever the ranks of a launcher listen on, in four ways, until the run is over."""

    def __init__(self, launcher: int) -> None:
        super().__init__()
        self.launcher = launcher
        self.over = threading.Event()
        self.calls = 0
        self.met: set[tuple[str, int]] = set()
        self.silent: list[socket.socket] = []

    def run(self) -> None:
        while not self.over.is_set():
            for address in self.listening():
                self.call(address)
            time.sleep(0.02)
        for each in self.silent:
            each.close()

    def listening(self) -> list[tuple[str, int]]:
        sockets = support.tcp_sockets()
        mine = set()
        for pid in support.rank_pids(self.launcher).values():
            mine |= support.socket_inodes(pid)
        return [("127.0.0.1", s.local[1]) for i, s in sockets.items() if s.listens and i in mine]

    def call(self, address: tuple[str, int]) -> None:
        is_new = address not in self.met
        self.met.add(address)
        for words in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b""):
            try:
                caller = socket.create_connection(address, timeout=1)
                caller.sendall(words)
                caller.close()
                self.calls += 1
                if is_new:
                    self.silent.append(socket.create_connection(address, timeout=1))
            except OSError:  # It has ended, or has cut the stranger off.
                continue


class StrangersEndARun(ProcessTest):
    def run_among_strangers(self, run: str, transport: str) -> Strangers:
        config = self.config(run={"steps": STEPS}, launch={"transport": transport})
        started = self.start_train(config, run)
        strangers = Strangers(started.pid)
        strangers.start()
        try:
            result = started.wait()
        finally:
            strangers.over.set()
            strangers.join()
        self.assert_code(result, 0)
        return strangers

    def test_a_run_is_as_without_them(self) -> None:
        config = self.config(run={"steps": STEPS}, launch={"transport": "shm"})
        self.assert_code(self.train(config, "--run", "alone"), 0)
        expected = losses(self.folder / "alone")
        for transport in ("tcp", "gloo"):
            with self.subTest(transport):
                strangers = self.run_among_strangers(transport, transport)
                self.assertEqual(losses(self.folder / transport), expected)
                self.assertGreaterEqual(len(strangers.met), SOCKETS[transport])
                self.assertGreater(strangers.calls, 100)
                print(f"{transport}: {strangers.calls} calls at {len(strangers.met)} sockets")
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_minute_of_silence(self) -> None:
        """To every listener a connection that says nothing, over both transports at once."""
        config = self.config(run={"steps": STEPS}, launch={"transport": "shm"})
        self.assert_code(self.train(config, "--run", "alone"), 0)
        expected = losses(self.folder / "alone")[:STEPS]  # Without the last validation.
        runs = {}
        for transport in ("tcp", "gloo"):
            config = self.config(run={"steps": 1_000_000}, launch={"transport": transport})
            run = self.start_train(config, transport)
            run.await_step(2)  # By then all of its sockets are there.
            strangers = Strangers(run.pid)
            for address in strangers.listening():
                strangers.silent.append(socket.create_connection(address, timeout=1))
            self.assertGreaterEqual(len(strangers.silent), SOCKETS[transport])
            runs[run] = strangers
        time.sleep(SILENCE_S)
        for run, strangers in runs.items():
            run.process.send_signal(signal.SIGTERM)
            result = run.wait()
            self.assert_code(result, 75)
            self.assertEqual(support.root_causes(result.text), ["stopped by SIGTERM"])
            found = losses(run.directory)
            print(f"{run.directory.name}: {len(found)} steps, {len(strangers.silent)} connections")
            self.assertGreater(len(found), STEPS)
            self.assertEqual(found[:STEPS], expected)
            for each in strangers.silent:
                each.close()
        self.assert_nothing_left()
