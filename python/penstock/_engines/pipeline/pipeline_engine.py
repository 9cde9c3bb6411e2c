"""Trains a PipelineModule: any schedule over its stages, times replicas.

    engine, optimizer, loader, scheduler = penstock.initialize(model=model, config=config)
    for _ in range(1000):
        loss = engine.train_batch(data)  # an iterator of (inputs, labels), one for each microbatch

Programs, messages and backward are those of penstock.pipelining; what is added here is a training
loop's body.  Source: deepspeed.runtime.pipe.engine; docs/migrating_from_deepspeed.md says what is
different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from penstock import _torch, configuration
from penstock._calls import for_all_ranks
from penstock._compatibility import has_own_row, lacking, published_as
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.pipeline.compared_facts import step_words
from penstock._engines.pipeline.data_rounds import DataRounds, take
from penstock._engines.pipeline.engine_program import program_of, steps_of, title_of
from penstock._engines.pipeline.instruction_handlers import Placed
from penstock._engines.pipeline.pipeline_module import PipelineModule
from penstock._engines.pipeline.pipeline_progress import PipelineProgress
from penstock._engines.pipeline.pipeline_stage import RunStage, Stage
from penstock._engines.pipeline.refusals import refuse
from penstock._engines.pipeline.replicated_stages import (
    ReplicatedStages,
    check_ties,
    places_of,
)
from penstock._engines.ranks import process_groups
from penstock._engines.ranks.process_groups import telling_others
from penstock._engines.saving.checkpoints import Checkpoints, Place
from penstock._engines.saving.pieces import Pieces
from penstock._engines.stages.schedule_run import ScheduleRun
from penstock._engines.stages.stage_work import Step
from penstock._engines.steps.dataset_sizes import compare_sizes
from penstock._engines.steps.engine_steps import EngineSteps
from penstock._engines.update.optimizers import (
    Given,
    Scheduler,
    described,
    facts_of_optimizer,
    name_of_function,
)
from penstock._planning import Schedule
from penstock.errors import ConfigError, Error

__all__ = ["PipelineEngine", "PipelineError"]


class PipelineError(Error):
    """What a pipeline's engine does not do."""


_HOST = torch.device("cpu")
_WALKS = {
    *("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"),
    *("children", "named_children", "training", "train", "eval", "state_dict"),
}


class PipelineEngine(EngineSteps):
    """A model, its optimizer, and how a step runs.  Collective over all ranks, as its methods are.

    model: the same layers on every rank.
    config: a dict or the path of a JSON file (penstock.configuration); `schedule` is one of
        penstock's schedules, or a file with a program.
    optimizer: or what makes one of the parameters; None: as the configuration says.  What it gets
        to update are this rank's parts: parameters, or, from ZeRO 1 on, flat slices of them, so it
        must treat elements one by one, as Adam does: one that is not torch's is refused there,
        unless zero_allow_untested_optimizer says that it does.
    model_parameters: what it updates, or parameter groups; None: all that are trainable.
    lr_scheduler: or what makes one of the optimizer; None: as the configuration says.
    training_data: a dataset, which the first and the last stage load; train_batch() goes round it.

    With bf16 or fp16 enabled the layers are cast in place, and the optimizer updates copies of 32
    bits.

    Attributes: module, optimizer, lr_scheduler, training_dataloader; global_steps, global_samples.

    Raises ConfigError for what does not fit, and CommError where the ranks do not run the same.
    """

    module: PipelineModule

    @for_all_ranks("penstock", name="initialize()")
    def __init__(
        self,
        model: PipelineModule,
        config: Mapping[str, Any] | str | Path,
        *,
        optimizer: Given | None = None,
        model_parameters: Iterable[Any] | None = None,
        lr_scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None = None,
        training_data: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.module = model
        topology = model._topology
        self.num_stages = model.num_stages
        self.stage_id = model.stage_id
        self.device = _HOST
        group = process_groups.resolve(None)
        with process_groups.telling_who_connects(group):
            self.config = configuration.read(config)
            refuse(self.config, model)
            place: int = topology.get_coord(model.global_rank).data
            self._begin(self.config, topology.get_dim("data"), place)
            program = self._program()
            if model.global_rank == 0:
                self.config.tell_what_has_no_effect(
                    is_pipeline=True,
                    has_optimizer=optimizer is not None,
                    has_scheduler=lr_scheduler is not None,
                    others=model._arguments_without_effect(),
                )
            scale = self._take_types()
            trainable = [each for each in model.parameters() if each.requires_grad]
            self._take_optimizer(
                optimizer,
                list(model_parameters or trainable) or [{"params": []}],  # All may be frozen here.
                lr_scheduler,
                of=f"the stages of rank {self.global_rank}",
                repair="say the schedule to PipelineModule(schedule=...), which makes their layers",
            )
        self._communicator = process_groups.connect(group)
        self._all = self._communicator.make_group(range(topology.world_size()))
        stages = model._stages()
        replicas = Replicas(self._communicator, topology.filter_match(pipe=self.stage_id))
        with telling_others(self._communicator):
            self._replicated = ReplicatedStages(model, stages, replicas, self._zero)
            loss = ("loss function", name_of_function(model.loss_fn))
            replicas.agree([*facts_of_optimizer(self.optimizer), loss])
            self._update = self._make_update(self._replicated, lr_scheduler, scale)
            self._places = places_of(
                model,
                self._replicated.parameters,
                self._communicator,
                self._all,
                counts=place == 0,
            )
        updated = {id(self._replicated.parameters[i]) for i in self._update.updated}
        check_ties(model, stages, updated, self._communicator)
        self.lr_scheduler = self._update.lr_scheduler
        self._checkpoints = self._make_checkpoints(stages, title_of(model._schedule or "1f1b"))
        self._run = self._make_run(program, stages)
        compare_sizes(self._communicator, training_data)
        self._placed = self._place_handlers()
        self._batch_fn: Callable[[Any], Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._words = step_words(
            self._communicator, topology, self.optimizer, self._steps_so_far, self._rounds
        )
        self.training_dataloader: Any = None
        if training_data is not None:
            self.set_dataloader(self._loader(training_data, None, collate_fn, shuffle=False))

    @for_all_ranks("a pipeline's engine")
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
        if not self.module.training:
            self.module.train()
        factors = [self.loss_scale / count] * count if self._is_last else None
        with self._replicated.running(trains=True):
            losses = self._run.train(step, factors, self._averaged)
        if self._placed is not None:
            with self._run.telling_others():
                self._placed.run_end()
        squares = self._places.place(self._replicated.squared_norms(), self._update.updated)
        loss, sums = self._combine(losses, count, [*squares, *self._words.mine()])
        self._words.check(sums[len(squares) :])
        self._norm = norm = self._update.norm_of(sums[: len(squares)])
        with self._run.telling_others():
            self._update.apply(norm, self.global_steps, f" at loss {loss:g}")
        self._count_step(f"loss {loss:g}, norm {norm:g}", loss=loss)
        return torch.tensor(loss)

    @for_all_ranks("a pipeline's engine")
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
        modes = [(module, module.training) for module in self.module.modules()]
        self.module.eval()
        try:
            with self._replicated.running():
                losses = self._run.evaluate(step)
        finally:
            for module, trains in modes:
                module.training = trains
        outputs = [step.outputs[i] for i in range(count)] if step.outputs else None
        if not compute_loss:
            return outputs
        result: Any = losses if self._is_last else None
        if reduce_output is not None:
            mean, _ = self._combine(losses, count)
            self.monitor.write_events([("Train/Samples/eval_loss", mean, self.global_samples)])
            result = torch.tensor(mean) if bcast_loss or self._is_last else None
        return (result, outputs) if return_logits else result

    def set_dataloader(self, loader: Iterable[Any]) -> None:
        """What train_batch() without an iterator goes round, again and again."""
        self.training_dataloader = loader
        self._iterator = DataRounds(loader)

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        """What train_batch() takes its microbatches from, until it ends."""
        self._iterator = iter(iterator)

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """Makes of what iterators give a pair (inputs, labels)."""
        self._batch_fn = fn

    def _rounds(self) -> DataRounds | None:
        """The loader's rounds, where train_batch() goes round one."""
        return self._iterator if isinstance(self._iterator, DataRounds) else None

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

    def reset_activation_shape(self) -> None:
        """Changes nothing: shapes may change from microbatch to microbatch."""

    def empty_partition_cache(self) -> None:
        """Changes nothing."""

    @for_all_ranks(
        "a pipeline's engine", when="waits for nobody; the engine's other calls need it whole"
    )
    def destroy(self) -> None:
        """Drops gradients and the data, and ends boards; connections go with the engine."""
        self._replicated.drop_gradients()
        self.monitor.close()
        self.training_dataloader = self._iterator = None

    def __getattr__(self, name: str) -> Any:
        """Its module's walks over parameters and layers, and attributes of the module's own."""
        module, own = self.__dict__.get("module"), f"PipelineEngine.{name}"
        is_own = not hasattr(torch.nn.Module, name) and name[0] != "_"
        is_there = module is not None and (name in _WALKS or (is_own and hasattr(module, name)))
        if not is_there or has_own_row("deepspeed.runtime.pipe.engine", own):
            raise lacking("penstock.pipe.engine", own)
        return getattr(module, name)

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
        section = self.config.get("schedule")
        if section is not None:
            chosen, per_rank = section, None
            if isinstance(section, Mapping):
                chosen = section.get("name", section.get("file", "1f1b"))
                per_rank = section.get("stages_per_rank")
            model._use_schedule(chosen, per_rank)
        interval = self.config.settings["pipeline"]["activation_checkpoint_interval"]
        if interval:
            model.activation_checkpoint_interval = interval
        return program_of(
            model._schedule or "1f1b",
            ranks=model.num_stages,
            microbatches=self.gradient_accumulation_steps(),
            stages_per_rank=model._stages_per_rank,
            tied_stages=model._tied_stages(),
            handled=model._handlers.unknown(),
        )

    def _make_checkpoints(self, stages: Mapping[int, Stage], schedule: str) -> Checkpoints:
        model, held = self.module, self._replicated.held
        modules, written = model._saved_modules()
        pieces = Pieces(
            modules,
            written,
            {each: names[0] for each, names in self._replicated.names.items()},
            lambda: [each for of_set in held.kept() for each in of_set],
            held.parts,
            self._update,
            is_first_replica=self.dp_rank == 0,
        )
        layout = {
            "parts": list(model.parts),
            "ranks": list(model._rank_of_stage),
            "replicas": self.dp_world_size,
        }
        return Checkpoints(
            pieces,
            self._update,
            self._communicator,
            Place(self.stage_id, self.dp_rank, self.dp_world_size, layout),
            PipelineProgress(self, stages, self._rounds, self.set_dataiterator),
            {
                **dict(self.config.facts()),
                "mesh": f"pipe={self.num_stages} data={self.dp_world_size}",
                "schedule": schedule,
            },
        )

    def _place_handlers(self) -> Placed | None:
        """Has the handlers called where their instructions are."""
        chosen = self.module._schedule
        if not self.module._handlers:
            return None
        if chosen is None or isinstance(chosen, str | Schedule):
            raise ConfigError("handlers are for a schedule that is a class of PipeSchedule")
        stages = steps_of(
            chosen, ranks=self.num_stages, microbatches=self.gradient_accumulation_steps()
        )
        placed = self.module._handlers.place([stages[self.stage_id]])
        for operation in ("F", "B"):
            self._run.replace(operation, placed.run_action)
        return placed

    def _make_run(self, program: Schedule, modules: Mapping[int, Stage]) -> ScheduleRun:
        """Connects the stages, and has the ranks compare what they run."""
        last = len(self.module._rank_of_stage) - 1
        stages = [
            RunStage(stage, i, self.module._tied_parameters(i), is_first=i == 0, is_last=i == last)
            for i, stage in modules.items()
        ]
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)
        return ScheduleRun(
            program,
            stages,
            self._loss,
            self._communicator,
            replicas=self.dp_world_size,
            replicated=self._replicated.held,
            facts=self._facts(),
        )

    def _facts(self) -> list[tuple[str, str]]:
        """What all ranks have in common."""
        return [
            *self._facts_of_settings(self.loss_scale),
            ("layers of the model", str(len(self.module._layer_specs))),
            ("partition", str(self.module.parts)),
            ("optimizer", described(type(self.optimizer).__name__, self.optimizer.defaults)),
            ("scheduler", type(self.lr_scheduler).__name__),
            *_torch.load().facts_of_host_updates(),  # Stages update copies of tied parameters.
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
        self, losses: list[torch.Tensor], count: int, others: Sequence[float] = ()
    ) -> tuple[float, list[float]]:
        """The mean loss, and the sums of `others`: the same bits on every rank."""
        shared = torch.tensor([0.0, *others], dtype=torch.float64)
        if self._is_last:
            shared[0] = torch.stack([each.double().reshape(()) for each in losses]).sum()
        self._communicator.sum(shared, self._all)
        loss, *summed = shared.tolist()
        return loss / (count * self.dp_world_size), summed


_ONLY_BATCHES = "a pipeline runs whole batches: use train_batch() or eval_batch()"


published_as("penstock.pipe.engine", globals())
