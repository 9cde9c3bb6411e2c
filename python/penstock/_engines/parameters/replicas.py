"""The ranks that have the same model, connected.

Knows no parameters.  All that is taken from a process group of torch.distributed is its ranks, its
store for the moment of connecting, and its timeout (penstock/_engines/ranks/process_groups.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from penstock import _torch
from penstock._distributed import init_distributed
from penstock._engines.ranks.process_groups import connect, resolve, telling_others
from penstock.errors import CommError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from penstock._runtime import Communicator, ReplicaGroup

__all__ = ["Replicas"]

_WORDS_BYTES = 256  # Bytes of what ranks tell each other that they do next.


class Replicas:
    """Collective over ranks of a communicator, the same list on each; None: all.

    size: how many there are.  rank: this one's place among them.
    """

    def __init__(self, communicator: Communicator, ranks: Sequence[int] | None = None) -> None:
        self.communicator = communicator
        here = list(range(communicator.world_size) if ranks is None else ranks)
        self.size = len(here)
        self.rank = here.index(communicator.rank)
        self._ranks = here
        make: type[ReplicaGroup] = _torch.load().ReplicaGroup
        self.group = make(communicator, here)

    @staticmethod
    def of(group: ProcessGroup | None = None) -> Replicas:
        """The replicas of a process group; None is the default one, which is joined if need be."""
        if group is None:
            init_distributed()
        return Replicas(connect(resolve(group)))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Collective: the values of the `root`-th of them, in place."""
        if self.size > 1:
            with self.telling_others():
                self.group.broadcast(tensor, root)

    def agree(self, facts: list[tuple[str, str]]) -> None:
        """Collective over the communicator: a CommError where replicas do not have the same facts.

        facts: by the names of docs/handshake.md.  What replicas need to make the same of their
        updates is compared as well: the facts of the process, and the bits of an update.
        """
        if self.size == 1:
            return
        runtime = _torch.load()
        mine = [*runtime.facts_of_process(), *facts, *runtime.facts_of_host_updates()]
        runtime.agree(self.communicator, "engine", mine, [self._ranks])

    def agree_on_next(self, what: str) -> None:
        """Collective: a CommError where the first of them does something else next.

        what: this one does, in words of which so many count as fit.
        """
        if self.size == 1:
            return
        mine = what.encode()[:_WORDS_BYTES].ljust(_WORDS_BYTES)
        words = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        with self.telling_others():
            try:
                self.group.broadcast(words, 0)
            except CommError as error:
                note = f"this rank {what}, which all ranks do together"
                raise CommError(error.message, (*error.notes, note)) from None
            first = bytes(words.tolist())
            if first != mine:
                raise CommError(
                    f"ranks do different things: the first {first.decode(errors='replace').strip()}"
                    f", rank {self.rank} of {self.size} {what}",
                    ("parameters that are spread over the ranks are read by all of them together",),
                )

    def telling_others(self) -> AbstractContextManager[None]:
        """What is raised inside ends the waits of all other ranks, with its words."""
        return telling_others(self.communicator) if self.size > 1 else nullcontext()
