"""A network that fails under a run on two hosts; network_soak.py does it many times.

Takes over 10 s: ranks that cannot reach each other end by their deadlines.
"""

from __future__ import annotations

import random
import unittest

import network
from network import Layout


class Disturbed(network.NetworkTest):
    def test_a_cable_that_is_pulled_ends_every_rank(self) -> None:
        generator = random.Random(1)
        outcome = self.harm("down", Layout(2, 1, 0, "tcp"), generator)
        self.assertEqual(outcome, "ended with errors and went on")

    def test_a_cable_that_is_pulled_for_a_moment_is_told_or_not_noticed(self) -> None:
        self.harm("pause", Layout(1, 2, 2, "gloo"), random.Random(2))

    def test_a_connection_that_is_cut_is_told_or_not_noticed(self) -> None:
        self.harm("reset", Layout(1, 2, 3, "tcp"), random.Random(3))

    def test_a_connection_that_is_heard_at_one_end_is_told_or_not_noticed(self) -> None:
        self.harm("half_open", Layout(2, 1, 0, "gloo"), random.Random(4))


if __name__ == "__main__":
    unittest.main()
