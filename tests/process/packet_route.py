"""The way between two hosts on which this process carries each packet, and does one of them harm.

A TUN device is the interface of each host.  What one host sends is read here and written to the
other one, until the fault of the route begins.  Then one connection is reset, or heard in one
direction only, or not at all, or late.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import select
import struct
import threading
import time
from dataclasses import dataclass

from hosts import Hosts, UnavailableError

SET_INTERFACE, IS_TUN, WITHOUT_HEADER = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES_MAX = 65536
TCP = 6
FIN, SYN, RST, ACK = 1, 2, 4, 16

Ends = tuple[bytes, bytes]  # Address and port of the sender, and of the receiver.


@dataclass(frozen=True)
class Fault:
    """What becomes of which connection, and when."""

    kind: str  # reset, half_open, silent, late.
    connection: int  # The first that may be meant, in the order in which they are made, from 0.
    at_bytes: int  # Once one has carried so many.
    seconds: float = 0.0  # late: how late each later packet is.


@dataclass
class Connection:
    """A TCP connection, both of its directions."""

    number: int
    carried: int = 0


def checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def reset_packet(ends: Ends, sequence: int) -> bytes:
    """From the first to the second of the ends; `sequence` is the next one that it expects."""
    (source, source_port), (target, target_port) = ((end[:4], end[4:]) for end in ends)
    tcp = source_port + target_port + struct.pack("!IIBBHHH", sequence, 0, 5 << 4, RST, 0, 0, 0)
    pseudo = source + target + struct.pack("!BBH", 0, TCP, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, TCP, 0) + source + target
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + tcp


class Route(Hosts):
    """Two hosts, and a thread that carries their packets."""

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.tuns: list[int] = []
        self.connections: dict[frozenset[bytes], Connection] = {}
        self.expected: dict[Ends, int] = {}  # The next sequence number of that direction.
        self.harmed: frozenset[bytes] | None = None
        self.lost: Ends | None = None  # The direction that is not heard.
        self.late: list[tuple[float, int, int, bytes]] = []
        self.order = itertools.count()  # Of packets that are due at the same time.
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.carry)

    def make(self) -> None:
        super().make()
        self.thread.start()

    def make_interfaces(self) -> None:
        for name in self.ends:
            try:
                self.tuns.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
                request = struct.pack("16sH22x", name.encode(), IS_TUN | WITHOUT_HEADER)
                fcntl.ioctl(self.tuns[-1], SET_INTERFACE, request)
            except OSError as error:
                raise UnavailableError(f"/dev/net/tun makes no device here: {error}") from None

    def remove(self) -> None:
        self.is_over.set()
        if self.thread.is_alive():
            self.thread.join()
        super().remove()
        for tun in self.tuns:
            os.close(tun)
        self.tuns.clear()

    def carry(self) -> None:
        while not self.is_over.is_set():
            wait = 0.05
            if self.late:
                wait = min(wait, max(0.0, self.late[0][0] - time.monotonic()))
            for tun in select.select(self.tuns, [], [], wait)[0]:
                to = self.tuns[1 - self.tuns.index(tun)]
                self.pass_on(os.read(tun, PACKET_BYTES_MAX), to, tun)
            while self.late and self.late[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self.late)
                self.write(to, packet)

    def write(self, to: int, packet: bytes) -> None:
        try:
            os.write(to, packet)
        except OSError:  # The host has gone, or cannot take it now: packets get lost.
            return

    def pass_on(self, packet: bytes, to: int, back: int) -> None:
        if packet[0] >> 4 != 4 or packet[9] != TCP:
            self.write(to, packet)
            return
        start = (packet[0] & 15) * 4
        source, target = packet[start : start + 2], packet[start + 2 : start + 4]
        ends = (packet[12:16] + source, packet[16:20] + target)
        size = struct.unpack_from("!H", packet, 2)[0] - start - (packet[start + 12] >> 4) * 4
        pair = frozenset(ends)
        if pair not in self.connections:
            self.connections[pair] = Connection(len(self.connections))
        connection = self.connections[pair]
        fault = self.fault
        is_meant = fault and not self.harmed and connection.number >= fault.connection
        if fault and is_meant and connection.carried + size > fault.at_bytes:
            self.harm(pair, ends, to, back)
        if pair == self.harmed and fault:
            if fault.kind == "late":
                due = time.monotonic() + fault.seconds
                heapq.heappush(self.late, (due, next(self.order), to, packet))
                return
            if self.lost in (None, ends):
                return
        flags = packet[start + 13]
        sequence = struct.unpack_from("!I", packet, start + 4)[0]
        end = sequence + size + bool(flags & SYN) + bool(flags & FIN)
        self.expected[ends] = end & 0xFFFFFFFF
        connection.carried += size
        self.write(to, packet)

    def harm(self, pair: frozenset[bytes], ends: Ends, to: int, back: int) -> None:
        """The packet of that direction that would pass the count goes no further."""
        assert self.fault
        self.harmed = pair
        if self.fault.kind == "half_open":
            self.lost = ends
        if self.fault.kind == "reset":
            other = (ends[1], ends[0])
            for direction, tun in ((ends, to), (other, back)):
                if direction in self.expected:
                    self.write(tun, reset_packet(direction, self.expected[direction]))
