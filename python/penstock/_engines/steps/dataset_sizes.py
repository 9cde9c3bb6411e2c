"""Datasets of ranks that load one each: they have one size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import _torch

if TYPE_CHECKING:
    from penstock._runtime import Communicator

__all__ = ["compare_sizes", "size_of"]


def size_of(dataset: Any) -> str:
    """A text for ranks that compare theirs; nothing where there is no dataset."""
    if dataset is None:
        return ""
    return f"{len(dataset)} samples" if hasattr(dataset, "__len__") else "of no known size"


def compare_sizes(communicator: Communicator, dataset: Any) -> None:
    """Collective over all ranks: inputs and labels come from the datasets of two of them.

    Raises CommError where they have not one size; a rank may have none.
    """
    size = size_of(dataset)
    sizes = communicator.exchange("training_data", size)
    having = [rank for rank, each in enumerate(sizes) if each]
    if having:
        _torch.load().agree(communicator, "engine", [("training data", size)], [having])
