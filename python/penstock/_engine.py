"""The steps of an engine: their sizes, the data that they take, and how far they have come.

What the engines of penstock.zero and penstock.pipe have in common, in DeepSpeed's names.  Knows no
models, and how no step runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from penstock.errors import CommError

if TYPE_CHECKING:
    import torch

    from penstock._runtime import Communicator
    from penstock._update import Update
    from penstock.configuration import Batch, Configuration

__all__ = ["Steps", "compare_sizes", "size_of"]

_log = logging.getLogger("penstock")


class Steps:
    """A base of engines, which make the optimizer.

    dp_world_size, dp_rank: how many replicas there are, and which one this is.
    global_steps, global_samples: of the optimizer so far, and all that they took.
    """

    optimizer: torch.optim.Optimizer
    config: Configuration
    _norm: float | None
    _update: Update

    def _begin(self, config: Configuration, dp_world_size: int, dp_rank: int) -> None:
        """Raises ConfigError for sizes that do not fit the replicas."""
        self.dp_world_size = dp_world_size
        self.dp_rank = dp_rank
        self._batch: Batch = config.batch(dp_world_size)
        self._steps_per_print = config.interval("steps_per_print")
        self._norm = None
        self.global_steps = 0
        self.global_samples = 0

    def train_batch_size(self) -> int:
        """Samples of a step, over all replicas."""
        return self._batch.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a microbatch."""
        return self._batch.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        """Microbatches of a step of one replica."""
        return self._batch.gradient_accumulation_steps

    def get_lr(self) -> list[float]:
        """The learning rates of the next step, by parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """The 2-norm of the last step's gradient before it was clipped; None before any.

        Over all parameters of the model, tied ones once.
        """
        return self._norm

    def was_step_applied(self) -> bool:
        """Whether the last step() changed parameters: not if it was skipped, or ended no step."""
        return self._update.was_applied

    @property
    def skipped_steps(self) -> int:
        """Steps whose gradients overflowed, so that they changed nothing."""
        return self._update.skipped_steps

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by; gradients are divided by it before they are used."""
        return self._update.scale.value

    def _loader(
        self,
        dataset: Any,
        batch_size: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        shuffle: bool = True,
    ) -> DataLoader[Any]:
        """This replica's share of a dataset, the same on all of its ranks; None: microbatches.

        shuffle: in an order that is drawn; else in that of the dataset.
        """
        sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas=self.dp_world_size, rank=self.dp_rank, shuffle=shuffle
        )
        return DataLoader(
            dataset,
            batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            sampler=sampler,
            collate_fn=collate_fn,
            drop_last=self.config.flag("dataloader_drop_last", False),
        )

    def _count_step(self, outcome: str) -> None:
        """One more; it is in the log if the configuration says so."""
        self.global_steps += 1
        self.global_samples += self.train_batch_size()
        if self._steps_per_print and self.global_steps % self._steps_per_print == 0:
            _log.info("step %d: %s, lr %s", self.global_steps, outcome, self.get_lr())


def size_of(dataset: Any) -> str:
    """For ranks that compare theirs; nothing where there is no dataset."""
    if dataset is None:
        return ""
    return f"{len(dataset)} samples" if hasattr(dataset, "__len__") else "of no known size"


def compare_sizes(communicator: Communicator, dataset: Any) -> None:
    """Collective over all ranks: inputs and labels come from the datasets of two of them.

    Raises CommError where they have not one size; a rank may have none.
    """
    sizes = communicator.exchange("training_data", size_of(dataset))
    given = [(rank, size) for rank, size in enumerate(sizes) if size]
    for rank, size in given[1:]:
        first, expected = given[0]
        if size != expected:
            raise CommError(
                f"ranks {first} and {rank} differ: training_data is {expected} on rank {first}, "
                f"{size} on rank {rank}"
            )
