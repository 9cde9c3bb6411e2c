"""Two network namespaces that stand for two hosts, and what is between them.

Cable is a pair of veth devices, which can be cut and slowed; packet_route.py has a way on which
this process carries each packet.  Neither host sees the other's processes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path

MASTER, OTHER = "10.211.7.1", "10.211.7.2"
NAME = "penstock-master"  # Of the first host, as it and the second one know it.
PORT = "29511"  # Each namespace has ports of its own.

_numbers = itertools.count()


class UnavailableError(Exception):
    """Why there are no such hosts here."""


def run(*words: object) -> None:
    """Throws UnavailableError with the command's words."""
    texts = [str(word) for word in words]
    done = subprocess.run(texts, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(texts)} fails here: {done.stderr.strip()}")


class Hosts:
    """The namespaces.  Whoever makes them calls remove(), whatever happens."""

    def __init__(self) -> None:
        process, number = os.getpid(), next(_numbers)
        self.names = [f"penstock-{process}-{number}-{host}" for host in range(2)]
        # A device's name has at most 15 letters.
        self.ends = [f"pst{process % 100000}.{number}.{host}" for host in range(2)]
        self.files = [Path("/etc/netns") / name for name in self.names]

    def make(self) -> None:
        """Throws UnavailableError."""
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            raise UnavailableError("network namespaces need root, ip and unshare")
        own = [f"127.0.1.1 {NAME}\n", f"{MASTER} {NAME}\n"]
        for name, folder, hosts in zip(self.names, self.files, own, strict=True):
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
            run("ip", "netns", "add", name)
        self.make_interfaces()
        for name, end, address in zip(self.names, self.ends, (MASTER, OTHER), strict=True):
            run("ip", "link", "set", end, "netns", name)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            run("ip", "-n", name, "link", "set", end, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def make_interfaces(self) -> None:
        """`ends`, one for each host, in the namespace of this process."""
        raise NotImplementedError

    def remove(self) -> None:
        for name, folder in zip(self.names, self.files, strict=True):
            for pid in self.pids(name):
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(folder, ignore_errors=True)

    def pids(self, name: str) -> list[int]:
        """The processes there, all of them started by on()."""
        words = ["ip", "netns", "pids", name]
        listed = subprocess.run(words, capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def on(self, host: int) -> list[str]:
        """What runs a command there."""
        words = ["ip", "netns", "exec", self.names[host]]
        return [*words, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


class Cable(Hosts):
    """Two hosts and a cable."""

    def make_interfaces(self) -> None:
        run("ip", "link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1])

    def set_up(self, host: int, is_up: bool) -> None:
        """Plugs the cable in at that host, or pulls it."""
        state = "up" if is_up else "down"
        run("ip", "-n", self.names[host], "link", "set", self.ends[host], state)

    def slow_down(self, rate: str) -> None:
        """In both directions: "1mbit"."""
        for name, end in zip(self.names, self.ends, strict=True):
            limits = ("rate", rate, "burst", "32kbit", "latency", "400ms")
            run("tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf", *limits)
