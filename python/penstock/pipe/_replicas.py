"""What the ranks of a stage's replicas have in common: values, gradients, and the optimizer's work.

Every rank makes one, and calls it at the same places.  Knows no stages and no optimizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from penstock._runtime import Communicator

__all__ = ["Replicas", "Shares"]

_BUCKET_BYTES = 32 << 20  # Copied and summed at once.


@dataclass(frozen=True)
class Shares:
    """Who updates which parameters, by place in the group; the same on all ranks."""

    of_ranks: list[list[torch.nn.Parameter]]
    place: int

    def mine(self) -> set[int]:
        """The ids of this rank's."""
        return {id(each) for each in self.of_ranks[self.place]}


class Replicas:
    """The ranks that have the same parameters.

    ranks: in order, the same list on each of them.
    """

    def __init__(self, communicator: Communicator, ranks: Sequence[int]) -> None:
        self._communicator = communicator
        self._group = communicator.make_group(ranks)
        self._count = len(ranks)
        self._place = list(ranks).index(communicator.rank)

    def share_values(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives all ranks the values of the first."""
        if self._count == 1:
            return
        for tensor in tensors:
            self._communicator.broadcast(tensor, self._group, 0)

    def divide(self, parameters: Iterable[torch.nn.Parameter]) -> Shares:
        """Whole parameters, to each rank about as many numbers to update as to any other."""
        shares: list[list[torch.nn.Parameter]] = [[] for _ in range(self._count)]
        sizes = [0] * self._count
        for parameter in sorted(parameters, key=lambda each: each.numel(), reverse=True):
            least = sizes.index(min(sizes))
            shares[least].append(parameter)
            sizes[least] += parameter.numel()
        return Shares(shares, self._place)

    def share_updates(self, shares: Shares) -> None:
        """Gives all ranks what each has updated of its own."""
        for owner, parameters in enumerate(shares.of_ranks):
            for bucket in _buckets(parameters):
                flat = torch.cat([each.detach().reshape(-1) for each in bucket])
                self._communicator.broadcast(flat, self._group, owner)
                if owner == self._place:
                    continue
                new = torch.split(flat, [each.numel() for each in bucket])
                for parameter, values in zip(bucket, new, strict=True):
                    parameter.detach().copy_(values.view_as(parameter))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sums the gradients over the ranks: the same bits on each; none where none has one."""
        if self._count == 1:
            return
        for bucket in _buckets(parameters):
            missing = [parameter.grad is None for parameter in bucket]
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            has = torch.tensor([not each for each in missing], dtype=bucket[0].dtype)
            flat = torch.cat([*(part.reshape(-1) for part in parts), has])
            self._communicator.sum(flat, self._group)
            sums = torch.split(flat[: -len(bucket)], [each.numel() for each in bucket])
            for parameter, total, count in zip(
                bucket, sums, flat[-len(bucket) :].tolist(), strict=True
            ):
                parameter.grad = total.view_as(parameter) if count else None


def _buckets(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """In their order, of one type each, so many that they are worth a message."""
    open_: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        dtype = parameter.dtype
        open_.setdefault(dtype, []).append(parameter)
        sizes[dtype] = sizes.get(dtype, 0) + parameter.numel() * parameter.element_size()
        if sizes[dtype] >= _BUCKET_BYTES:
            yield open_.pop(dtype)
            sizes[dtype] = 0
    yield from open_.values()
