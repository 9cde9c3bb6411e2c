"""Trains a PipelineModule: any schedule over its stages, times replicas.

    engine, optimizer, loader, scheduler = penstock.initialize(model=model, config=config)
    for _ in range(1000):
        loss = engine.train_batch(data)  # an iterator of (inputs, labels), one for each microbatch

Programs, messages and backward are those of penstock.pipelining; what is added here is a training
loop's body.  Source: deepspeed.runtime.pipe.engine; docs/migrating_from_deepspeed.md says what is
different.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from penstock import configuration
from penstock._optimizers import Course, Given, make_optimizer, make_scheduler
from penstock.errors import ConfigError, Error
from penstock.pipe._program import program_of
from penstock.pipe._replicas import Replicas
from penstock.pipe.module import PipelineModule
from penstock.pipelining import _groups
from penstock.pipelining._run import Run, telling_others
from penstock.pipelining._work import Step

__all__ = ["PipelineEngine", "PipelineError"]

_log = logging.getLogger("penstock")


class PipelineError(Error):
    """What a pipeline's engine does not do."""


@dataclass
class _RunStage:
    """A stage as penstock.pipelining._run takes it."""

    submod: torch.nn.Module
    stage_index: int
    tied: dict[str, torch.nn.Parameter]
    is_first: bool
    is_last: bool
    dw_builder: Callable[[], Callable[..., None]] | None = None


class PipelineEngine:
    """A model, its optimizer, and how a step runs.  Collective over all ranks, as its methods are.

    model: the same layers on every rank.
    config: a dict or the path of a JSON file (penstock.configuration); `schedule` is one of
        penstock's schedules, or a file with a program.
    optimizer: or what makes one of the parameters; None: as the configuration says.
    model_parameters: what it updates, or parameter groups; None: all that are trainable.
    lr_scheduler: or what makes one of the optimizer; None: as the configuration says.
    training_data: a dataset, which the first and the last stage load; train_batch() goes round it.

    Attributes: module, optimizer, lr_scheduler, training_dataloader; global_steps, global_samples.

    Raises ConfigError for what does not fit, and CommError where the ranks do not run the same.
    """

    def __init__(
        self,
        model: PipelineModule,
        config: Mapping[str, Any] | str | Path,
        *,
        optimizer: Given | None = None,
        model_parameters: Iterable[Any] | None = None,
        lr_scheduler: Course | Callable[[torch.optim.Optimizer], Course] | None = None,
        training_data: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.module = model
        self.config = configuration.read(config)
        _refuse_what_is_not_here(self.config)
        topology = model.topology()
        self.num_stages = model.num_stages
        self.stage_id = model.stage_id
        self.device = torch.device("cpu")
        self.dp_world_size = topology.get_dim("data")
        self.dp_rank: int = topology.get_coord(model.global_rank).data
        self._batch = self.config.batch(self.dp_world_size)
        self._clipping = self.config.number("gradient_clipping", 0.0)
        self._steps_per_print = self.config.integer("steps_per_print", 0)
        given = None if model_parameters is None else list(model_parameters)
        program = self._program()
        self._communicator = _groups.connect(_groups.resolve(None))
        with telling_others(self._communicator):
            self._parameters = [each for each in model.parameters() if each.requires_grad]
            self.optimizer = make_optimizer(self.config, given or self._parameters, optimizer)
            self._check_updates()
            self.lr_scheduler = make_scheduler(self.config, self.optimizer, lr_scheduler)
        self._replicas = Replicas(self._communicator, topology.filter_match(pipe=self.stage_id))
        self._all = self._communicator.make_group(range(topology.world_size()))
        with torch.no_grad():
            self._replicas.share_values([*model.parameters(), *model.buffers()])
        last = len(model.rank_of_stage) - 1
        stages = [
            _RunStage(stage, number, model.tied_parameters(number), number == 0, number == last)
            for number, stage in model.stages().items()
        ]
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)
        self._run = Run(
            program,
            stages,
            self._loss,
            self._communicator,
            replicas=self.dp_world_size,
            facts=self._facts(),
        )
        self.global_steps = 0
        self.global_samples = 0
        self._norm: float | None = None
        self._batch_fn: Callable[[Any], Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self.training_dataloader: Any = None
        if training_data is not None:
            self.set_dataloader(self.deepspeed_io(training_data, collate_fn=collate_fn))

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> torch.Tensor:
        """One step of the optimizer; returns the mean loss over all microbatches and replicas.

        data_iter: gives (inputs, labels) for each microbatch: on the ranks of the first stage,
            which use the inputs, and of the last one, which use the labels.  None: what
            set_dataloader() or set_dataiterator() was given.

        Raises what a layer, the loss or the iterator raises, on the rank where it does, and
        penstock.CommError with its words on all others; the engine cannot be used after that.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError("train_batch() needs gradients, and they are off: use eval_batch()")
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        count = self.gradient_accumulation_steps()
        with self._run.telling_others():
            step = self._load(self._iterator, count, with_labels=True)
        self.module.train()
        share = 1.0 / (count * self.dp_world_size)
        losses = self._run.train(step, [share] * count if self._is_last else None)
        self._replicas.sum_gradients(self._parameters)
        loss, norm = self._combine(losses, count)
        with self._run.telling_others():
            self._update(norm, loss)
        return torch.tensor(loss)

    def eval_batch(
        self,
        data_iter: Iterator[Any],
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Runs the model forward only, in eval(); returns the mean loss, as train_batch() does.

        return_logits: returns a pair of the loss and the outputs: on ranks of the last stage a list
            by microbatch, None elsewhere.
        compute_loss: False: needs no labels, and returns the outputs.
        reduce_output: "avg", or None for a list of this replica's losses, on ranks of the last
            stage, and None elsewhere.
        bcast_loss: False: the loss only on ranks of the last stage, None elsewhere.
        num_micro_batches: None: as many as train_batch() takes.
        """
        if reduce_output not in ("avg", None):
            raise ValueError(f'reduce_output is {reduce_output!r}, must be "avg" or None')
        count = (
            self.gradient_accumulation_steps() if num_micro_batches is None else num_micro_batches
        )
        with self._run.telling_others():
            step = self._load(iter(data_iter), count, with_labels=compute_loss)
        step.keeps_outputs = return_logits or not compute_loss
        was_training = self.module.training
        self.module.eval()
        try:
            losses = self._run.evaluate(step)
        finally:
            self.module.train(was_training)
        outputs = [step.outputs[i] for i in range(count)] if step.outputs else None
        if not compute_loss:
            return outputs
        result: Any = losses if self._is_last else None
        if reduce_output is not None:
            mean, _ = self._combine(losses, count, with_norm=False)
            result = torch.tensor(mean) if bcast_loss or self._is_last else None
        return (result, outputs) if return_logits else result

    def set_dataloader(self, loader: Iterable[Any]) -> None:
        """What train_batch() without an iterator goes round, again and again."""
        self.training_dataloader = loader
        self._iterator = _again_and_again(loader)

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        """What train_batch() takes its microbatches from, until it ends."""
        self._iterator = iter(iterator)

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """Makes of what iterators give a pair (inputs, labels)."""
        self._batch_fn = fn

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader[Any]:
        """A loader of microbatches, of this replica's share of a dataset, in an order of the seed.

        Every rank of a replica gets the same.  What does not fill a microbatch is left out.
        """
        sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas=self.dp_world_size, rank=self.dp_rank
        )
        return DataLoader(
            dataset,
            batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            sampler=sampler,
            collate_fn=collate_fn,
            drop_last=True,
        )

    def is_first_stage(self) -> bool:
        """Whether this rank has the first stage, which takes the inputs."""
        return self._is_first

    def is_last_stage(self) -> bool:
        """Whether this rank has the last stage, which takes the labels."""
        return self._is_last

    def train_batch_size(self) -> int:
        """Samples of a step, over all replicas."""
        return self._batch.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a microbatch."""
        return self._batch.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        """Microbatches of a step of one replica."""
        return self._batch.gradient_accumulation_steps

    def get_pipeline_parallel_rank(self) -> int:
        """This rank's place among those of its replica."""
        return self.stage_id

    def get_lr(self) -> list[float]:
        """The learning rates of the next step, by parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """The 2-norm of the last step's gradient before it was clipped; None before any.

        Over the parameters of all stages, tied ones once.
        """
        return self._norm

    def train(self, mode: bool = True) -> None:
        """Has the module in train(), or eval(); train_batch() and eval_batch() do so themselves."""
        self.module.train(mode)

    def eval(self) -> None:
        """Has the module in eval()."""
        self.module.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises PipelineError: a step is a whole program."""
        raise PipelineError(_ONLY_BATCHES)

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises PipelineError: a step is a whole program."""
        raise PipelineError(_ONLY_BATCHES)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Raises PipelineError: a step is a whole program."""
        raise PipelineError(_ONLY_BATCHES)

    def _program(self) -> Any:
        model = self.module
        section = self.config.values.get("schedule")
        if section is not None:
            chosen, per_rank = section, None
            if isinstance(section, Mapping):
                chosen = section.get("name", section.get("file", "1f1b"))
                per_rank = section.get("stages_per_rank")
            model.use_schedule(chosen, per_rank)
        interval = self.config.integer("activation_checkpoint_interval", 0, section="pipeline")
        if interval:
            model.activation_checkpoint_interval = interval
        return program_of(
            model.schedule or "1f1b",
            ranks=model.num_stages,
            microbatches=self.gradient_accumulation_steps(),
            stages_per_rank=model.stages_per_rank,
            tied_stages=model.tied_stages(),
        )

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("layers", str(self.module.num_layers())),
            ("partition", str(self.module.parts)),
            ("train_batch_size", str(self.train_batch_size())),
            ("gradient_clipping", str(self._clipping)),
            ("optimizer", type(self.optimizer).__name__),
        ]

    def _check_updates(self) -> None:
        """An optimizer that was made for other layers would update nothing."""
        here = {id(each) for each in self._parameters}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in here or not parameter.requires_grad:
                    continue
                raise ConfigError(
                    "the optimizer has a parameter that is not in this rank's stages: say the "
                    "schedule to PipelineModule(schedule=...), which makes their layers"
                )

    def _load(self, iterator: Iterator[Any] | None, count: int, *, with_labels: bool) -> Step:
        """The microbatches of a step, as far as this rank uses them."""
        pairs: list[tuple[Any, Any]] = []
        if self._is_first or (self._is_last and with_labels):
            if iterator is None:
                raise ConfigError(
                    "no data: give train_batch() an iterator, or the engine a dataset or a loader"
                )
            pairs = [self._next(iterator, i, count) for i in range(count)]
        step = Step([(inputs,) for inputs, _ in pairs] if self._is_first else None, [{}] * count)
        step.keeps_outputs = False
        if self._is_last and with_labels:
            step.targets = [labels for _, labels in pairs]
        return step

    def _next(self, iterator: Iterator[Any], number: int, count: int) -> tuple[Any, Any]:
        try:
            batch = next(iterator)
        except StopIteration:
            raise Error(
                f"the data of stage {self.stage_id}, replica {self.dp_rank} ended in step "
                f"{self.global_steps}, after {number} of {count} microbatches"
            ) from None
        if self._batch_fn is not None:
            batch = self._batch_fn(batch)
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            kind = type(batch).__name__
            raise TypeError(
                f"the data gave a {kind}, must give pairs (inputs, labels); set_batch_fn() makes "
                f"them of anything"
            )
        inputs, labels = batch
        return tuple(inputs) if isinstance(inputs, list) else inputs, labels

    def _loss(self, output: Any, labels: Any) -> torch.Tensor:
        if self.module.loss_fn is not None:
            found: torch.Tensor = self.module.loss_fn(output, labels)
            return found
        if isinstance(output, torch.Tensor) and output.numel() == 1:
            return output
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ConfigError(
            f"the PipelineModule has no loss_fn, and its last layer returned {shape}: give one, or "
            f"have the last layer return the loss"
        )

    def _combine(
        self, losses: list[torch.Tensor], count: int, *, with_norm: bool = True
    ) -> tuple[float, float]:
        """The mean loss, and the norm of the gradient: the same bits on every rank."""
        shared = torch.zeros(2, dtype=torch.float64)
        if self._is_last:
            shared[0] = torch.stack([each.double().reshape(()) for each in losses]).sum()
        if with_norm and self.dp_rank == 0:  # Replicas have the same gradients.
            shared[1] = self._squared_norm()
        self._communicator.sum(shared, self._all)
        loss, squares = shared.tolist()
        return loss / (count * self.dp_world_size), math.sqrt(squares)

    def _squared_norm(self) -> float:
        total = 0.0
        for parameter in self.module.counted_parameters():
            if parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
                total += norm.item() ** 2
        return total

    def _update(self, norm: float, loss: float) -> None:
        self._norm = norm
        if not math.isfinite(norm):
            raise Error(
                f"step {self.global_steps}: the gradient norm is {norm} at loss {loss:g}",
                ("the weights are as before this step",),
            )
        factor = self._clipping / (norm + 1e-6) if self._clipping else 1.0
        gradients = [each.grad for each in self._parameters if each.grad is not None]
        if factor < 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.global_steps += 1
        self.global_samples += self.train_batch_size()
        if self._steps_per_print and self.global_steps % self._steps_per_print == 0:
            _log.info(
                "step %d: loss %g, norm %g, lr %s", self.global_steps, loss, norm, self.get_lr()
            )


_ONLY_BATCHES = "a pipeline runs whole batches: use train_batch() or eval_batch()"


def _refuse_what_is_not_here(config: configuration.Configuration) -> None:
    for key in ("fp16", "bf16"):
        if config.flag("enabled", False, section=key):
            raise ConfigError(f"{config.name}: {key}: pipelines train in the types of their layers")
    stage = config.integer("stage", 0, section="zero_optimization")
    if stage > 0:
        raise ConfigError(
            f"{config.name}: zero_optimization.stage is {stage}, must be 0 for a PipelineModule",
            ("`penstock train` and penstock::train::Trainer run stages 1 and 2 in pipelines",),
        )


def _again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    epoch = 0
    while True:
        sampler = getattr(loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            return
        epoch += 1
