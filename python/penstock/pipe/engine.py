"""Trains a PipelineModule: any schedule over its stages, times replicas.

    engine, optimizer, loader, scheduler = penstock.initialize(model=model, config=config)
    for _ in range(1000):
        loss = engine.train_batch(data)  # an iterator of (inputs, labels), one for each microbatch

Programs, messages and backward are those of penstock.pipelining; what is added here is a training
loop's body.  Source: deepspeed.runtime.pipe.engine; docs/migrating_from_deepspeed.md says what is
different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock import configuration
from penstock._engine import Steps
from penstock._optimizers import Course, Given
from penstock._planning import Schedule
from penstock.errors import ConfigError, Error
from penstock.pipe._checkpoint import Checkpoint, latest, set_latest
from penstock.pipe._data import again_and_again, take
from penstock.pipe._handlers import Placed
from penstock.pipe._program import program_of, steps_of
from penstock.pipe._refusals import refuse, zero_stage
from penstock.pipe._update import Update
from penstock.pipe.module import PipelineModule
from penstock.pipelining import _groups
from penstock.pipelining._run import Run
from penstock.pipelining._work import Step

__all__ = ["PipelineEngine", "PipelineError"]


class PipelineError(Error):
    """What a pipeline's engine does not do."""


_HOST = torch.device("cpu")


@dataclass
class _RunStage:
    """A stage as penstock.pipelining._run takes it."""

    submod: torch.nn.Module
    stage_index: int
    tied: dict[str, torch.nn.Parameter]
    is_first: bool
    is_last: bool
    dw_builder: Callable[[], Callable[..., None]] | None = None
    device: torch.device = _HOST


class PipelineEngine(Steps):
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
        topology = model.topology()
        self.num_stages = model.num_stages
        self.stage_id = model.stage_id
        self.device = _HOST
        group = _groups.resolve(None)
        with _groups.telling_who_connects(group):
            self.config = configuration.read(config)
            refuse(self.config, model)
            place: int = topology.get_coord(model.global_rank).data
            self._begin(self.config, topology.get_dim("data"), place)
            program = self._program()
        self._communicator = _groups.connect(group)
        self._all = self._communicator.make_group(range(topology.world_size()))
        self._update = Update(
            self.config,
            model,
            self._communicator,
            topology.filter_match(pipe=self.stage_id),
            optimizer=optimizer,
            given_parameters=model_parameters,
            lr_scheduler=lr_scheduler,
        )
        self.optimizer = self._update.optimizer
        self.lr_scheduler = self._update.lr_scheduler
        self._run = self._make_run(program)
        self._placed = self._place_handlers()
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
        if self._placed is not None:
            with self._run.telling_others():
                self._placed.run_end()
        self._update.sum_gradients()
        loss, self._norm = self._combine(losses, count, self._update.squared_norm())
        with self._run.telling_others():
            self._step(loss, self._norm)
        return torch.tensor(loss)

    def eval_batch(
        self,
        data_iter: Iterator[Any] | None,
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Runs the model forward only, in eval(); returns the mean loss, as train_batch() does.

        data_iter: as of train_batch(); ranks between the first and the last stage need none.
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
        if count < 1:
            raise ValueError(f"num_micro_batches is {count}, must be at least 1")
        with self._run.telling_others():
            iterator = None if data_iter is None else iter(data_iter)
            step = self._load(iterator, count, with_labels=compute_loss)
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
            mean, _ = self._combine(losses, count)
            result = torch.tensor(mean) if bcast_loss or self._is_last else None
        return (result, outputs) if return_logits else result

    def set_dataloader(self, loader: Iterable[Any]) -> None:
        """What train_batch() without an iterator goes round, again and again."""
        self.training_dataloader = loader
        self._iterator = again_and_again(loader)

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
        return self._loader(dataset, batch_size, collate_fn, drop_last=True)

    def save_checkpoint(
        self,
        save_dir: str | Path,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
    ) -> str:
        """Writes weights, optimizer, scheduler and counters; returns the folder.

        save_dir: the same folder for all ranks.  tag: None: "global_stepN".
        client_state: of rank 0: plain values and tensors, which load_checkpoint() returns.
        save_latest: whether load_checkpoint() takes it from now on.
        """
        directory = Path(save_dir)
        checkpoint = Checkpoint(directory / (tag or f"global_step{self.global_steps}"))
        with self._run.telling_others():
            checkpoint.folder.mkdir(parents=True, exist_ok=True)
            if self.dp_rank == 0:
                checkpoint.save_weights(self.module)
            if self.dp_rank == 0 or self._update.is_shared:
                place = f"{self.stage_id:02d}-{self.dp_rank:02d}"
                checkpoint.save_optimizer(self.module, self._update, place)
            if self.module.global_rank == 0:
                counters = {"steps": self.global_steps, "samples": self.global_samples}
                checkpoint.save_engine(self._update, counters, dict(client_state or {}))
        self._communicator.exchange("checkpoint written", "")
        if save_latest and self.module.global_rank == 0:
            set_latest(directory, checkpoint.folder.name)
        self._communicator.exchange("checkpoint is the latest", "")
        return str(checkpoint.folder)

    def load_checkpoint(
        self,
        load_dir: str | Path,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Goes on from a checkpoint, of this or any other number of stages, replicas and schedule.

        tag: None: the latest.  Returns the folder and the client_state; two None where there is no
        checkpoint yet.
        Raises ConfigError for files that do not fit, and CommError on the other ranks.
        """
        directory = Path(load_dir)
        found = tag or latest(directory)
        if found is None:
            return None, None
        checkpoint = Checkpoint(directory / found)
        with self._run.telling_others():
            state = checkpoint.load_engine()
            checkpoint.load_weights(self.module, load_module_strict)
            if not load_module_only:
                self._go_on(checkpoint, state, load_optimizer_states, load_lr_scheduler_states)
        self._communicator.exchange("checkpoint loaded", "")
        return str(checkpoint.folder), state["client_state"]

    def is_first_stage(self) -> bool:
        """Whether this rank has the first stage, which takes the inputs."""
        return self._is_first

    def is_last_stage(self) -> bool:
        """Whether this rank has the last stage, which takes the labels."""
        return self._is_last

    def get_pipeline_parallel_rank(self) -> int:
        """This rank's place among those of its replica."""
        return self.stage_id

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

    def _program(self) -> Schedule:
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
            handled=model.handlers.unknown(),
        )

    def _place_handlers(self) -> Placed | None:
        """Has the handlers called where their instructions are."""
        chosen = self.module.schedule
        if not self.module.handlers:
            return None
        if chosen is None or isinstance(chosen, str | Schedule):
            raise ConfigError("handlers are for a schedule that is a class of PipeSchedule")
        stages = steps_of(
            chosen, ranks=self.num_stages, microbatches=self.gradient_accumulation_steps()
        )
        placed = self.module.handlers.place([stages[self.stage_id]])
        for operation in ("F", "B"):
            self._run.replace(operation, placed.run_action)
        return placed

    def _make_run(self, program: Schedule) -> Run:
        """Connects the stages, and has the ranks compare what they run."""
        last = len(self.module.rank_of_stage) - 1
        stages = [
            _RunStage(stage, i, self.module.tied_parameters(i), is_first=i == 0, is_last=i == last)
            for i, stage in self.module.stages().items()
        ]
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)
        return Run(
            program,
            stages,
            self._loss,
            self._communicator,
            replicas=self.dp_world_size,
            facts=self._facts(),
        )

    def _go_on(
        self, checkpoint: Checkpoint, state: dict[str, Any], optimizer: bool, scheduler: bool
    ) -> None:
        self.global_steps = state["counters"]["steps"]
        self.global_samples = state["counters"]["samples"]
        if optimizer:
            checkpoint.load_optimizer(self.module, self._update)
            for group, saved in zip(self.optimizer.param_groups, state["groups"], strict=True):
                group.update(saved)
        if scheduler and self.lr_scheduler is not None and state["scheduler"] is not None:
            self.lr_scheduler.load_state_dict(state["scheduler"])

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("layers", str(self.module.num_layers())),
            ("partition", str(self.module.parts)),
            ("train_batch_size", str(self.train_batch_size())),
            ("gradient_clipping", str(self._update.clipping)),
            ("zero_optimization.stage", str(zero_stage(self.config))),
            ("optimizer", type(self.optimizer).__name__),
        ]

    def _load(self, iterator: Iterator[Any] | None, count: int, *, with_labels: bool) -> Step:
        """The microbatches of a step, as far as this rank uses them."""
        pairs: list[tuple[Any, Any]] = []
        if self._is_first or (self._is_last and with_labels):
            where = f"stage {self.stage_id}, replica {self.dp_rank}, in step {self.global_steps},"
            pairs = take(iterator, count, self._batch_fn, where)
        step = Step([(inputs,) for inputs, _ in pairs] if self._is_first else None, [{}] * count)
        step.keeps_outputs = False
        if self._is_last and with_labels:
            step.targets = [labels for _, labels in pairs]
        return step

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
        self, losses: list[torch.Tensor], count: int, squared_norm: float = 0.0
    ) -> tuple[float, float]:
        """The mean loss, and the norm of the gradient: the same bits on every rank."""
        shared = torch.zeros(2, dtype=torch.float64)
        if self._is_last:
            shared[0] = torch.stack([each.double().reshape(()) for each in losses]).sum()
        shared[1] = squared_norm
        self._communicator.sum(shared, self._all)
        loss, squares = shared.tolist()
        return loss / (count * self.dp_world_size), math.sqrt(squares)

    def _step(self, loss: float, norm: float) -> None:
        if not math.isfinite(norm):
            raise Error(
                f"step {self.global_steps}: the gradient norm is {norm} at loss {loss:g}",
                ("the weights are as before this step",),
            )
        self._update.apply(norm)
        self._count_step(f"loss {loss:g}, norm {norm:g}")


_ONLY_BATCHES = "a pipeline runs whole batches: use train_batch() or eval_batch()"
