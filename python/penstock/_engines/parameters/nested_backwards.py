"""Outputs of one forward of which some are made of others: a loss, and the logits behind it.

A backward by the script divides gradients where they come to an output.  What comes to the logits
from the loss has been divided there, so it is multiplied on its way, and divided with the rest.
Knows no engines.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

__all__ = ["Outputs"]

Node = Any  # A node of an autograd graph.
_KEY = "penstock.outputs"


class Outputs:
    """The outputs of one forward, noted at the nodes that made them; refers to none of them."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, output: torch.Tensor) -> None:
        """One that has a graph."""
        assert output.grad_fn is not None
        noted: Any = output.grad_fn.metadata  # A dict; torch says that it is a function.
        noted.setdefault(_KEY, {})[output.output_nr] = self
        self._count += 1

    def keep_undivided_inside(self, factor: float, until: ExitStack[bool | None]) -> None:
        """Multiplies, `until` then, what comes to other outputs from the output whose node runs."""
        if self._count == 1:
            return
        for node, places in self._edges_from(torch._C._current_autograd_node()):
            until.callback(node.register_hook(_multiplying(places, factor)).remove)

    def _edges_from(self, start: Node) -> list[tuple[Node, list[int]]]:
        """Nodes whose edges lead to outputs, and the numbers of these edges.

        It goes no further than to an output: that looks from there on.
        """
        found, seen, todo = [], {start}, [start]
        while todo:
            node = todo.pop()
            places = []
            for i, (next_node, number) in enumerate(node.next_functions):
                if next_node is None:
                    continue
                if next_node.metadata.get(_KEY, {}).get(number) is self:
                    places.append(i)
                elif next_node not in seen:
                    seen.add(next_node)
                    todo.append(next_node)
            if places:
                found.append((node, places))
        return found


def _multiplying(places: list[int], factor: float) -> Any:
    def multiply(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del outputs
        return tuple(
            each * factor if i in places and each is not None else each
            for i, each in enumerate(inputs)
        )

    return multiply
