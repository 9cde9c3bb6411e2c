"""Processes of Python that have torch already: forks of one that imported it, once for all tests.

A start takes milliseconds, where `import torch.distributed.pipelining` takes three seconds.  The
forks are processes of their own; what they share is what was imported, and Python's hash seed.  So
there are two parents, with seeds of their own, and neighbouring ranks come from different ones: an
order of a set that ranks silently rely on differs between them, as it does between machines.

Not for tests of what happens at a start: imports, environment variables that libraries read while
they load, options of the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

PARENTS = 2


class Process:
    """What tests use of subprocess.Popen."""

    def __init__(self, pid, status):
        self.pid = pid
        self.returncode = None
        self._status = status
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # It has ended already; the pid may be another's by now.
            self._pidfd = None

    def poll(self):
        return self._wait(0)

    def wait(self, timeout=None):
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def _wait(self, timeout_s):
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout_s):
                    line = os.read(self._status, 16)
                    self.returncode = int(line) if line else -signal.SIGKILL
                    os.close(self._status)
                    if self._pidfd is not None:
                        os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None and self._pidfd is not None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that forks, in the eyes of the tests."""

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONHASHSEED", None)
        command = [sys.executable, "-W", "ignore::UserWarning", __file__]
        self._process = subprocess.Popen(command, env=environment, stdin=theirs)
        theirs.close()
        self._replies = self._socket.makefile("r")
        atexit.register(self._end)

    def start(self, program, words, environment, output):
        status, end = os.pipe()
        request = {"program": str(program), "words": list(map(str, words)), "env": environment}
        socket.send_fds(self._socket, [b"."], [output.fileno(), end])
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        os.close(end)
        reply = self._replies.readline()
        if not reply:
            raise RuntimeError(f"the process that forks has ended: {self._process.wait()}")
        return Process(int(reply), status)

    def _end(self):
        self._replies.close()
        self._socket.close()
        self._process.wait()


_parents: list[Parent] = []


def start(program, words, environment, output, parent=0):
    """Runs a Python file with these words, variables and output, as `python FILE WORDS` would.

    parent: the forks of one parent share a hash seed; any number.
    """
    while len(_parents) < PARENTS:
        _parents.append(Parent())
    return _parents[parent % PARENTS].start(program, words, environment, output)


def _serve():
    """Forks as it is told until the tests have ended; returns the request, in the fork alone."""
    requests = socket.socket(fileno=os.dup(0))
    lines = requests.makefile("r", newline="\n")
    ends, rung = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(rung)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(ends, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if ends in ready:
            os.read(ends, 4096)
            _tell_who_ended(children)
        if requests not in ready:
            continue
        mark, files, *_ = socket.recv_fds(requests, 1, 2)
        if not mark:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        request = json.loads(lines.readline())
        # A fork has the thread that forks, and whatever the others held.
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "an import started a thread"
        output, status = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            selector.close()
            for number in (output, status, ends, rung, *children.values()):
                os.close(number)
            lines.close()
            requests.close()
            return request
        children[pid] = status
        os.close(output)
        requests.sendall(f"{pid}\n".encode())


def _tell_who_ended(children):
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # Nobody waits for it.
            os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(end)


def _become(request):
    """Makes this process that of a program that Python was started with."""
    os.environ.clear()
    os.environ.update(request["env"])
    program = Path(request["program"])
    paths = [str(program.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [path for path in paths if path]
    sys.argv = [str(program), *request["words"]]
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    sys.modules["__main__"] = main
    exec(compile(program.read_text(encoding="utf-8"), program, "exec"), main.__dict__)


if __name__ == "__main__":
    import numpy.random
    import pytest  # noqa: F401
    import torch.distributed.fsdp
    import torch.distributed.pipelining  # noqa: F401

    # A fork that collects garbage would otherwise visit, and copy, all that was imported.
    gc.collect()
    gc.freeze()
    wanted = _serve()
    numpy.random.seed()
    _become(wanted)
