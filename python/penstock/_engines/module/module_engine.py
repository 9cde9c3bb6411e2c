"""Trains any torch.nn.Module over replicas, from ZeRO 0 to ZeRO 3.

    engine, optimizer, loader, scheduler = penstock.initialize(model=model, config=config)
    for inputs, labels in loader:
        loss = criterion(engine(inputs), labels)
        engine.backward(loss)
        engine.step()

What replicas do together, and when, is C++ (penstock/runtime/train/module_replica.h).  Models in
pipeline stages have an engine of their own, penstock.pipe.PipelineEngine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from penstock import configuration
from penstock._calls import for_all_ranks
from penstock._compatibility import lacking, published_as
from penstock._distributed import init_distributed
from penstock._engines.module.fragments import Fragments
from penstock._engines.module.leaf_modules import mark_configured
from penstock._engines.module.losses import check_loss
from penstock._engines.module.module_progress import ModuleProgress
from penstock._engines.module.module_steps import ModuleSteps
from penstock._engines.parameters.gathered_parameters import GatheredParameters
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.parameters.replicated_model import ReplicatedModel, facts_of
from penstock._engines.ranks.process_groups import resolve, telling_who_connects
from penstock._engines.saving.checkpoints import Checkpoints, Place
from penstock._engines.saving.pieces import Pieces
from penstock._engines.saving.saved_checkpoint import write_weights
from penstock._engines.settings.offload_sections import OffloadDeviceEnum, OffloadStateTypeEnum
from penstock._engines.steps.dataset_sizes import size_of
from penstock._engines.update.optimizers import (
    Given,
    Scheduler,
    facts_of_optimizer,
)
from penstock._engines.update.step_facts import Compared, Options, StepSignals
from penstock.errors import AssertedError, ConfigError

__all__ = ["Engine"]


class Engine(ModuleSteps, torch.nn.Module):
    """A model, its optimizer, and what a step is.  Collective over all ranks, as its calls are.

    model: a module, the same on every rank; its values become those of rank 0.
    config: a dict or the path of a JSON file (penstock.configuration).
    optimizer: or what makes one of the parameters; None: as the configuration says.  What it gets
        to update are this rank's parts: parameters, or, from ZeRO 1 on, flat slices of them, so it
        must treat elements one by one, as Adam does: one that is not torch's is refused there,
        unless zero_allow_untested_optimizer says that it does.
    model_parameters: what it updates, or parameter groups; None: all that are trainable.
    lr_scheduler: or what makes one of the optimizer; None: as the configuration says.
    training_data: a dataset, of which the loader gives this replica's share in microbatches.

    With bf16 or fp16 enabled the model is cast in place, and the optimizer updates copies of 32
    bits.

    Attributes: module, optimizer, lr_scheduler, training_dataloader, device; counts of steps.
    mpu: None: replicas are all ranks.

    Raises ConfigError for what does not fit, and CommError where the ranks do not have the same.
    """

    mpu = None

    @for_all_ranks("penstock", name="initialize()")
    def __init__(
        self,
        model: torch.nn.Module,
        config: Mapping[str, Any] | str | Path,
        *,
        optimizer: Given | None = None,
        model_parameters: Iterable[Any] | None = None,
        lr_scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None = None,
        training_data: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        self.module = model
        self.device = torch.device("cpu")
        init_distributed()
        group = resolve(None)
        with telling_who_connects(group):
            self.config = configuration.read(config)
            if dist.get_rank(group) == 0:
                self.config.tell_what_has_no_effect(
                    is_pipeline=False,
                    has_optimizer=optimizer is not None,
                    has_scheduler=lr_scheduler is not None,
                )
            self._begin(self.config, dist.get_world_size(group), dist.get_rank(group))
            given = None if model_parameters is None else list(model_parameters)
            scale = self._take_types()
            mark_configured(model, self.config.section("zero_optimization").get("leaf_module", {}))
            trainable = [each for each in model.parameters() if each.requires_grad]
            self._take_optimizer(
                optimizer,
                given or trainable,
                lr_scheduler,
                of="the engine's model",
                repair="make it a parameter of the model, which alone is trained",
            )
        self._replicas = Replicas.of(group)
        self._replicas.agree([*self._facts(scale.value), ("training data", size_of(training_data))])
        self._model = ReplicatedModel(
            model,
            self._replicas,
            self._zero,
            microbatches=self.gradient_accumulation_steps(),
            divisor=self._averaged,
            scale=scale if self._type is torch.float16 else None,
        )
        with self._replicas.telling_others():
            self._update = self._make_update(self._model, lr_scheduler, scale)
        self.lr_scheduler = self._update.lr_scheduler
        self._fragments = Fragments(self)
        self._checkpoints = self._make_checkpoints()
        self._begin_microbatches()
        options = Options(self.optimizer)
        everyone = [list(range(self.dp_world_size))]
        self._words = StepSignals(
            self._replicas.communicator,
            [Compared(lambda: [*self._step_facts(), *options.facts()], everyone)],
        )
        self.training_dataloader: DataLoader[Any] | None = None
        if training_data is not None:
            self.training_dataloader = self.deepspeed_io(training_data, collate_fn=collate_fn)

    @for_all_ranks("an engine", when="under ZeRO 3")
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module returns, as it returns it."""
        return self._model.forward(inputs, kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the engine lacks is the module's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is None:
                raise
            if not hasattr(module, name):
                raise lacking("penstock.runtime.engine", f"DeepSpeedEngine.{name}") from None
            return getattr(module, name)

    @for_all_ranks("an engine", when="at the end of a step; under ZeRO 3 always")
    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Adds the gradients of `loss`, as its share of the step; returns it as that.

        A step's gradient is the mean over its microbatches and replicas.  The last of a step leaves
        its sum over the replicas; more of them add to that sum.

        scale_wrt_gas: False: `loss` is divided already by the number of microbatches.

        `loss.backward()`, by the script itself, adds the same; step() sums it over the replicas.
        Under fp16 that is `engine.scale(loss).backward()`.
        """
        check_loss(loss)
        microbatches = self.gradient_accumulation_steps() if scale_wrt_gas else 1
        ends = self.is_gradient_accumulation_boundary() and not self._is_local
        self._model.backward(loss, ends=ends, retain_graph=retain_graph, divisor=microbatches)
        if self.monitor.is_writing:
            undivided = self.gradient_accumulation_steps() / microbatches
            self._losses.append(loss.detach().float() * undivided)
        self._taken += not self._is_managed
        return loss.detach() / microbatches

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the loss scale, for a backward() by the script itself."""
        check_loss(loss)
        return self._model.scaled(loss)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward() adds to this replica's gradients and never sums; nothing
        is counted.

        For ZeRO 0 and 1.  Raises ConfigError, here an AssertionError, too, for stages 2 and 3,
        which share gradients, and for a second one inside; so does step() inside.
        """
        if self.zero_optimization_partition_gradients():
            raise AssertedError(
                f"no_sync(): replicas share gradients with zero_optimization.stage "
                f"{self.zero_optimization_stage()}: use set_gradient_accumulation_boundary(False)"
            )
        if self._is_local:
            raise AssertedError("no_sync() inside no_sync(): leave the first one")
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    @for_all_ranks("an engine", when="at the end of a step")
    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Ends a microbatch; the last one of a step has the optimizer update the parameters.

        A gradient that is not finite on some rank changes nothing on any: in 16 bits the step is
        skipped, and the loss scale falls; else it is a penstock.Error.
        lr_kwargs: of the scheduler's step().
        """
        if self._is_local:
            raise AssertedError("step() inside no_sync(): gradients are summed after it")
        self._model.let_go()
        self._update.was_applied = False
        ends = self.is_gradient_accumulation_boundary() or not self._is_managed
        self.micro_steps += 1
        self._taken_calls += 1
        if not ends:
            return
        if self._is_boundary:  # Some call step() there alone, as Accelerate does.
            self.micro_steps += -self.micro_steps % self.gradient_accumulation_steps()
        self._model.sum_gradients()
        squares, words = self._model.squared_norms(self._words.mine())
        self._words.check(words)
        self._taken_calls = 0
        with self._replicas.telling_others():
            self._norm = self._update.norm_of([squares[i] for i in self._update.updated])
            where = self._model.where_not_finite(squares, self._update.updated)
            self._update.apply(self._norm, self.global_steps, where, lr_kwargs=lr_kwargs)
            taken, self._taken = self._taken, 0
            of_one = self.train_micro_batch_size_per_gpu() * self.dp_world_size
            samples = None if self._is_managed else taken * of_one
            self._count_step(f"norm {self._norm:g}", samples, self._mean_loss())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what backward() has added."""
        del set_to_none
        self._model.drop_gradients()

    @for_all_ranks("an engine", when="under ZeRO 3")
    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Collective: a copy of the module's state_dict(), with whole parameters, on every rank."""
        with GatheredParameters(self.module.parameters()):
            found = self.module.state_dict(prefix=prefix, keep_vars=keep_vars)
            state = found if keep_vars else copy.deepcopy(found)
        if exclude_frozen_parameters:
            for name, each in self.module.named_parameters():
                if not each.requires_grad:
                    del state[prefix + name]
        if destination is None:
            return state
        destination.update(state)
        return destination

    @for_all_ranks("an engine", when="under ZeRO 3")
    def load_module_state_dict(
        self,
        checkpoint: Mapping[str, Any],
        strict: bool = True,
        custom_load_fn: Callable[..., Any] | None = None,
    ) -> None:
        """Collective: sets the module's state, whole, to that of rank 0; masters follow.

        checkpoint: a state_dict(), or a dict with one under "module".
        custom_load_fn: is called with src and dst in place of the module's load_state_dict().
        """
        state = checkpoint.get("module", checkpoint)
        with GatheredParameters(self.module.parameters(), modifier_rank=0):
            if custom_load_fn is not None:
                custom_load_fn(src=state, dst=self.module)
            else:
                self.module.load_state_dict(state, strict=strict)

    def compile(
        self, backend: Any = "inductor", compile_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Has torch compile the module in place.

        Raises ConfigError where parameters come and go.
        """
        if self._zero.come_and_go(self.dp_world_size):
            raise ConfigError(
                "compile() under zero_optimization.stage 3: what torch.compile makes reads "
                "parameters where nothing can bring them: take stage 2"
            )
        self.module.compile(backend=backend, **(compile_kwargs or {}))

    @property
    def is_compiled(self) -> bool:
        """Whether the module is."""
        return self.module._compiled_call_impl is not None

    def offload_states(
        self,
        include: Iterable[OffloadStateTypeEnum] | None = None,
        device: OffloadDeviceEnum | str = OffloadDeviceEnum.cpu,
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Leaves states where they are: in host memory already, as parameters and gradients are.

        Raises ValueError for what is no state, and ConfigError for files.
        """
        for each in include or ():
            OffloadStateTypeEnum(each)
        if OffloadDeviceEnum(device) is OffloadDeviceEnum.nvme:
            raise ConfigError(
                'offload_states(device="nvme"): zero_optimization.offload_optimizer and '
                "offload_param say what is in files, for the whole run"
            )

    def reload_states(self, non_blocking: bool = False) -> None:
        """Leaves states where they are: where the rank computes."""

    def empty_partition_cache(self) -> None:
        """Lets go of parameters that the last forward has returned; all others have gone."""
        self._model.let_go()

    @for_all_ranks("an engine", when="waits for nobody; the engine's other calls need it whole")
    def destroy(self) -> None:
        """Drops gradients and what forwards have returned, and ends boards.

        Connections go with the engine.
        """
        self._model.let_go()
        self.monitor.close()
        self._model.drop_gradients()
        self._fragments.forget()

    @for_all_ranks("an engine", when="under ZeRO 3")
    def save_16bit_model(
        self,
        save_dir: str | Path,
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Collective: rank 0 writes the module's state_dict(), whole, to a file in `save_dir`.

        Parameters are of the types that the module has.  A name that ends with .safetensors is such
        a file, in which a tied parameter has one name; else it is one of torch.save().
        """
        state = self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters)
        with self._replicas.telling_others():
            if self.dp_rank == 0:
                write_weights(Path(save_dir) / save_filename, state, self._pieces.shared())
        return True

    save_fp16_model = save_16bit_model
    _zero3_consolidated_16bit_state_dict = module_state_dict  # Accelerate calls it so.

    def is_map_style_dataset(self, obj: Any) -> bool:
        """Whether samples have numbers."""
        return hasattr(obj, "__getitem__") and hasattr(obj, "__len__")

    def is_iterable_style_dataset(self, obj: Any) -> bool:
        """Whether samples come one after the other."""
        return isinstance(obj, torch.utils.data.IterableDataset)

    @property
    def paging(self) -> dict[str, int]:
        """What ZeRO 3 did in the last forward and backward on this rank.

        uses: of parameters' buckets; faults: of those that were away; prefetches, drops: buckets;
        peak_bytes: of buckets that were whole at one time.
        """
        return self._model.paging

    def _make_checkpoints(self) -> Checkpoints:
        held = self._model.replica
        self._pieces = Pieces(
            {"": self.module},
            frozenset([""]),
            self._model.names,
            held.kept,
            held.parts,
            self._update,
            is_first_replica=self.dp_rank == 0,
        )
        place = Place(0, self.dp_rank, self.dp_world_size, {"replicas": self.dp_world_size})
        return Checkpoints(
            self._pieces,
            self._update,
            self._replicas.communicator,
            place,
            ModuleProgress(self),
            {**dict(self.config.facts()), "mesh": f"data={self.dp_world_size}"},
        )

    def _facts(self, loss_scale: float) -> list[tuple[str, str]]:
        return [
            *self._facts_of_settings(loss_scale),
            *facts_of(self.module),
            *facts_of_optimizer(self.optimizer),
        ]


published_as("penstock.zero.engine", globals())
