"""How documents become samples: as a stream, whole ones packed, or one each.

A stream is cut by what reads it, wherever a sample ends.  Packed samples have one length, and hold
whole documents with the token behind them that ends documents; no document is cut.  Documents are
in memory until all are known.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterator, Sequence

from penstock.errors import ConfigError

Put = Callable[[list[int], "list[bool] | None"], None]
"""Takes tokens, and which of them count; all, where it is not said."""


class Stream:
    """Documents one behind the other."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def add(self, where: str, tokens: list[int], counts: list[bool] | None) -> None:
        """The next document."""
        self._put(tokens, counts)

    def finish(self) -> str:
        """What is to be told."""
        return ""


class Samples:
    """Documents in samples of `length` tokens.

    `packs`: several in one where they fit.  `cuts`: those that are longer are cut at the length;
    else they are dropped.  `filler` fills up samples, and counts nowhere.  Neither does a sample's
    first token, which is a target of the sample before alone.
    """

    def __init__(self, put: Put, length: int, filler: int, *, packs: bool, cuts: bool) -> None:
        self._put = put
        self._length = length
        self._filler = filler
        self._packs = packs
        self._cuts = cuts
        self._tokens = array("I")
        self._counts = bytearray()
        self._begins = array("Q", [0])
        self._too_long: list[str] = []
        self._silent = 0
        self.samples = 0

    def add(self, where: str, tokens: list[int], counts: list[bool] | None) -> None:
        """The next document."""
        if not tokens:
            return
        counts = [True] * len(tokens) if counts is None else counts
        if len(tokens) > self._length:
            self._too_long.append(f"{where} has {len(tokens)}")
            if not self._cuts:
                return
            tokens, counts = tokens[: self._length], counts[: self._length]
        if not any(counts[1:]):  # The first one is no target in a sample of its own.
            self._silent += 1
            return
        self._tokens.extend(tokens)
        self._counts.extend(counts)
        self._begins.append(len(self._tokens))

    def finish(self) -> str:
        """Writes the samples, and one token more: the last sample's last target.

        Returns what is to be told.  Raises ConfigError where no document fits.
        """
        lengths = [end - begin for begin, end in zip(self._begins, self._begins[1:], strict=False)]
        if not lengths and self._too_long:
            raise ConfigError(
                f"no document fits into {self._length} tokens: {self._too_long[0]}",
                ("--length makes samples longer; --too-long cut cuts documents",),
            )
        bins = packed(lengths, self._length) if self._packs else [[n] for n in range(len(lengths))]
        for sample in bins:
            self._write(sample)
        if bins:
            self._put([self._filler], [False])
        self.samples = len(bins)
        return self._told(sum(lengths))

    def _write(self, sample: list[int]) -> None:
        tokens: list[int] = []
        counts: list[bool] = []
        for document in sample:
            part = slice(self._begins[document], self._begins[document + 1])
            tokens.extend(self._tokens[part])
            counts.extend(map(bool, self._counts[part]))
        counts[0] = False
        room = self._length - len(tokens)
        self._put(tokens + [self._filler] * room, counts + [False] * room)

    def _told(self, filled: int) -> str:
        told = f"\n{self.samples} samples of {self._length} tokens"
        if self.samples:
            told += f", {filled / (self.samples * self._length):.1%} of them documents'"
        if self._too_long:
            done = "cut" if self._cuts else "dropped"
            told += f"\n{done} for length: {len(self._too_long)} documents; {self._too_long[0]}"
        if self._silent:
            told += f"\nleft out: {self._silent} documents in which nothing counts"
        return told


def packed(lengths: Sequence[int], room: int) -> list[list[int]]:
    """The numbers of what is in each sample: best fit decreasing.

    Each, the longest first, goes where it leaves the least room.  Samples come in the order of the
    first in them.
    REQUIRES: no length is above `room`.
    """
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # The keys that have bins, sorted.
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        length = lengths[number]
        at = bisect.bisect_left(rooms, length)
        if at == len(rooms):
            left, place = room, len(bins)
            bins.append([])
        else:
            left = rooms[at]
            place = by_room[left].pop()
            if not by_room[left]:
                del rooms[at]
        bins[place].append(number)
        left -= length
        if not by_room.setdefault(left, []):
            bisect.insort(rooms, left)
        by_room[left].append(place)
    return sorted(sorted(each) for each in bins)


def runs(counts: Sequence[bool]) -> Iterator[tuple[int, int, bool]]:
    """[begin, end) of neighbours that are alike, and what they are."""
    begin = 0
    for place in range(1, len(counts) + 1):
        if place == len(counts) or counts[place] != counts[begin]:
            yield begin, place, counts[begin]
            begin = place
