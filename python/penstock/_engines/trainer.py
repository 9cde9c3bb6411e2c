"""penstock.Trainer: the models that `penstock train` knows, trained by a script of one's own.

The layers are the library's, not torch modules: decoders of Hugging Face folders, and the GPT of
bytes.  So ranks can share them.  Knows no data but what the configuration names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _torch
from penstock._compatibility import published_as
from penstock._distributed import init_distributed
from penstock._engines.ranks.process_groups import connect, resolve, telling_who_connects
from penstock._foreign_files import read_foreign
from penstock._json_values import as_json

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from penstock._runtime import StepReport

__all__ = ["Trainer"]

_BYTES_MOST = 1 << 20  # kBytesMax in penstock/core/json/tree.h.


class Trainer:
    """Trains a model of `penstock train` on the ranks of torch.distributed, on any mesh.

        >>> trainer = penstock.Trainer({
        ...     "model": {"type": "hugging_face", "path": "Llama-3.2-1B"},
        ...     "mesh": {"pipe": 2, "tensor": 2},
        ...     "train_batch_size": 8,
        ... })
        >>> for tokens, targets in batches:
        ...     print(trainer.step(tokens, targets).loss)
        >>> trainer.save_model("tuned")

    config: the keys of `penstock train` (docs/configuration.md), as a dict or the path of a JSON
        file.  mesh.tensor is Megatron's tensor-model-parallel-size and torchtitan's
        tensor_parallel_degree; sequence parallelism always goes with it.  Keys of sections run,
        launch, checkpoint and schedule.adapt have no effect, but for run.steps, with which a
        course of the learning rate may end.
    group: its ranks train; None: all of torch.distributed, which is joined unless it has been.
        Its timeout is that of each wait.

    All calls but properties are collective: every rank makes them, in one order.  Ranks compute
    with one thread each, which this sets for the process (torch.set_num_threads).  So a run has the
    bits of `penstock train` with the same configuration and batches.

    Raises ConfigError for wrong keys, sizes that ranks cannot share and a mesh that is not the
    number of ranks; CommError, which names the difference, where ranks do not have the same.
    """

    def __init__(
        self, config: Mapping[str, Any] | str | Path, group: ProcessGroup | None = None
    ) -> None:
        init_distributed()
        ranks = resolve(group)
        with telling_who_connects(ranks):
            name = "config" if isinstance(config, Mapping) else str(config)
            text = as_json(config, name) if isinstance(config, Mapping) else _text_of(name)
            runtime = _torch.load()
            runtime.check_run_configuration(text, name)
        self._communicator = connect(ranks)
        self._trainer = runtime.Trainer(text, name, self._communicator, torch.device("cpu"))

    @property
    def mesh(self) -> dict[str, int]:
        """How many ranks lie along each axis: {"pipe": 2, "data": 1, "context": 1, "tensor": 2}."""
        sizes: dict[str, int] = self._trainer.mesh
        return sizes

    @property
    def replica(self) -> int:
        """The number of this rank's replica, in [0, replicas).

        Ranks of one, which share layers or pass activations on, are given the same batch.
        """
        number: int = self._trainer.replica
        return number

    @property
    def replicas(self) -> int:
        """How many parts a step's samples are in: mesh.data."""
        number: int = self._trainer.replicas
        return number

    @property
    def samples(self) -> int:
        """Samples of a step that each replica is given: train_batch_size / replicas."""
        number: int = self._trainer.samples
        return number

    @property
    def steps_taken(self) -> int:
        """Steps so far, those before a checkpoint that was loaded among them."""
        number: int = self._trainer.steps_taken
        return number

    def step(
        self, tokens: torch.Tensor | None = None, targets: torch.Tensor | None = None
    ) -> StepReport:
        """One optimizer step.

        tokens: int64 [samples, length], of this rank's replica.  targets: as many, the tokens that
            follow; -100 where the loss does not count.  Without both, the next batch of the
            configuration's `data`.

        Returns step, loss, lr, grad_norm, gradient_scale and skipped, the same on every rank.
        Raises Error, on every rank, where the loss or the norm is not finite; parameters are those
        of the step before.
        """
        report: StepReport = self._trainer.step(tokens, targets)
        return report

    def evaluate(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """The loss of a batch like step()'s, over all replicas.  Changes nothing."""
        loss: float = self._trainer.evaluate(tokens, targets)
        return loss

    def get(self, name: str, state: str = "weight") -> torch.Tensor:
        """A whole parameter or buffer, put together on every rank, by its name in the model.

        state: "weight", or what the optimizer keeps of it, such as "exp_avg".
        Raises Error for a name that no rank has, with the nearest one.
        """
        whole: torch.Tensor = self._trainer.get(name, state)
        return whole

    def set(self, name: str, values: torch.Tensor, state: str = "weight") -> None:
        """Sets it; all ranks give the same whole tensor, and each takes its part."""
        self._trainer.set(name, values, state)

    def save_checkpoint(self, directory: str | Path) -> None:
        """Saves weights, optimizer and step, as a folder step-... in `directory`.

        Any mesh goes on from it, also `penstock train --resume`.
        """
        self._trainer.save_checkpoint(str(directory))

    def load_checkpoint(self, path: str | Path) -> int:
        """Goes on from a checkpoint of any mesh, or the newest of a directory; returns its step."""
        step: int = self._trainer.load_checkpoint(str(path))
        return step

    def save_model(self, folder: str | Path) -> None:
        """Saves the weights as a Hugging Face folder: with adapters, the adapters alone."""
        self._trainer.save_model(str(folder))


def _text_of(path: str) -> str:
    return read_foreign(path, _BYTES_MOST).decode("utf-8")


published_as("penstock", globals())
