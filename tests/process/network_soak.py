#!/usr/bin/env python3
"""Disturbs the network between two hosts of a run, in eight ways, many times.

Two network namespaces are the hosts, with a rank each.  The cable is pulled for good (down), while
a checkpoint is saved (save), or for less than the deadline (pause), or carries 1 Mbit/s (slow).
Or one connection is reset, heard in one direction only, not at all, or late, after a random number
of bytes.  A run ends with the losses, parameters and states of the same run undisturbed, bit for
bit, or each rank ends by its deadline with an error that names its peer.  Then its checkpoints are
whole, and it goes on from them to the same end.  Layouts and transports take turns.  Prints "N of
N" for each.

Needs root, ip, tc, unshare and /dev/net/tun; else it says so, and exits with 77.  PENSTOCK_SEED
repeats the moments of an earlier one.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import time
import unittest

import hosts
import network
import packet_route
import support


class Disturbed(network.NetworkTest):
    """One run."""

    kind = network.HARMS[0]
    layout = network.LAYOUTS[0]
    generator = random.Random()
    note = ""
    outcome = ""

    def runTest(self) -> None:  # noqa: N802
        self.outcome = self.harm(self.kind, self.layout, self.generator)


def unavailable() -> str:
    """Why there are no such hosts here; empty: there are."""
    for two in (hosts.Cable(), packet_route.Route()):
        try:
            two.make()
            if isinstance(two, hosts.Cable):
                two.slow_down("1mbit")
        except (hosts.UnavailableError, OSError) as missing:
            return str(missing)
        finally:
            two.remove()
    return ""


STOPS = (signal.SIGINT, signal.SIGTERM)


def stop(*_: object) -> None:
    """Once: what follows removes all that there is, and a second signal must not end that."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt  # The only one that unittest lets through.


def disturb(kind: str, number: int) -> tuple[str, str]:
    """How that run ended, and what was wrong."""
    test = Disturbed()
    test.kind = kind
    test.layout = network.LAYOUTS[number % len(network.LAYOUTS)]
    seed = f"{support.SEED}-{kind}-{number}"
    test.generator = random.Random(seed)
    result = unittest.TestResult()
    try:
        test.run(result)
    finally:
        test.doCleanups()  # unittest leaves that out after Ctrl-C.
    wrong = "\n".join(text for _, text in result.failures + result.errors)
    wrong += "".join(reason for _, reason in result.skipped)
    return test.outcome, wrong and f"{kind} {number}, {test.layout}, {test.note}:\n{wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=16, help="of each way (default 16)")
    parser.add_argument("--only", choices=network.HARMS, help="this way alone")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first number")
    options = parser.parse_args()
    if not support.PENSTOCK.exists():
        print(f"there is no {support.PENSTOCK}: run `make` first, or set PENSTOCK_BUILD")
        return 1
    if missing := unavailable():
        print(f"skipped: {missing}")
        return 77
    for number in STOPS:
        signal.signal(number, stop)
    print(f"PENSTOCK_SEED={support.SEED}", flush=True)
    began = time.monotonic()
    all_good = True
    for kind in [options.only] if options.only else network.HARMS:
        ends: collections.Counter[str] = collections.Counter()
        for number in range(options.first, options.first + options.times):
            outcome, wrong = disturb(kind, number)
            ends["wrong" if wrong else outcome] += 1
            if wrong:
                print(wrong, flush=True)
        good = options.times - ends["wrong"]
        told = ", ".join(f"{count} {what}" for what, count in sorted(ends.items()))
        print(f"{kind}: {good} of {options.times}: {told}", flush=True)
        all_good = all_good and good == options.times
    print(f"{'all well' if all_good else 'NOT well'}, {time.monotonic() - began:.0f} s")
    return 0 if all_good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
