"""What both engines have in common, by DeepSpeed's names: settings, sizes, data and checkpoints.

Also how an optimizer is checked, and what updates weights by it.  Knows no models, and how no step
runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from penstock._calls import for_all_ranks
from penstock._distributed import get_local_rank
from penstock._engines.monitors.all_monitors import MonitorMaster
from penstock._engines.monitors.monitor_sections import DeepSpeedMonitorConfig
from penstock._engines.parameters.precision import cast, gradient_scale_of, type_of
from penstock._engines.parameters.zero_settings import ZeroSettings
from penstock._engines.saving.checkpoints import Checkpoints, Wanted
from penstock._engines.settings.getters import ConfigurationGetters
from penstock._engines.steps.throughput import Throughput
from penstock._engines.update.optimizers import (
    Given,
    Scheduler,
    check_parameters,
    check_scheduler,
    check_takes_slices,
    make_optimizer,
)
from penstock._engines.update.update import Replicated, Update, check_new
from penstock.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from penstock._runtime import GradientScale
    from penstock.configuration import Batch, Configuration

__all__ = ["EngineSteps"]

_log = logging.getLogger("penstock")


class EngineSteps(ConfigurationGetters):
    """A base of engines, which make the optimizer.

    dp_world_size, dp_rank: how many replicas there are, and which one this is.
    world_size, global_rank, local_rank: of all processes, and this one's among all and on its host.
    global_steps, global_samples: of the optimizer so far, and all that they took.
    monitor: the boards of the configuration (penstock.monitor), which rank 0 writes to.
    mp_world_size: 1: replicas are all ranks that the pipeline leaves.
    sparse_tensor_module_names: nothing: gradients are whole tensors.
    has_moe_layers: False: there are no experts.
    """

    sparse_tensor_module_names: frozenset[str] = frozenset()
    mp_world_size = 1
    has_moe_layers = False

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    _norm: float | None
    _update: Update
    _zero: ZeroSettings
    _type: torch.dtype | None
    _checkpoints: Checkpoints

    def _begin(self, config: Configuration, dp_world_size: int, dp_rank: int) -> None:
        """Raises ConfigError for sizes that do not fit the replicas, or boards that do not open."""
        self.dp_world_size = dp_world_size
        self.dp_rank = dp_rank
        self.world_size = dist.get_world_size()
        self.global_rank = dist.get_rank()
        self.local_rank = get_local_rank()
        self._batch: Batch = config.batch(dp_world_size)
        # Replicas that a gradient is the mean of: one, where it is their sum.
        sums = config.settings["gradient_allreduce_op"] == "sum"
        self._averaged = 1 if sums else dp_world_size
        self._steps_per_print = int(config.settings["steps_per_print"])
        self._norm = None
        self.global_steps = 0
        self.global_samples = 0
        self.tput_timer = Throughput(self)
        self.monitor = MonitorMaster(DeepSpeedMonitorConfig.of(config))

    def _take_types(self) -> GradientScale:
        """What the configuration says of types and ZeRO; the module becomes what it says."""
        self._zero = ZeroSettings.of(self.config)
        self._type = type_of(self.config)
        scale = gradient_scale_of(self.config)
        if self._type is not None:
            cast(self.module, self._type)
        return scale

    def _take_optimizer(
        self,
        given: Given | None,
        parameters: list[Any],
        lr_scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None,
        *,
        of: str,
        repair: str,
    ) -> None:
        """Has the optimizer that is given, or made.

        Raises ConfigError for one that was made for other parameters: it would update nothing.
        of: what has these, for errors, with the repair.
        """
        self.optimizer = make_optimizer(self.config, parameters, given)
        check_scheduler(self.optimizer, lr_scheduler)
        check_parameters(self.optimizer, self.module.parameters(), of, repair)
        check_new(self.optimizer, is_whole=self._zero.stage == 0 and self._type is None)
        check_takes_slices(self.config, self.optimizer, self._zero, self.dp_world_size)

    def _make_update(
        self,
        replicated: Replicated,
        lr_scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None,
        scale: GradientScale,
    ) -> Update:
        return Update(
            self.config,
            replicated,
            self.optimizer,
            lr_scheduler,
            scale,
            settings=self._zero,
            is_short=self._type is not None,
        )

    def train_batch_size(self) -> int:
        """Samples of a step, over all replicas."""
        return self._batch.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a microbatch."""
        return self._batch.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        """Microbatches of a step of one replica."""
        return self._batch.gradient_accumulation_steps

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the batch from the next step on, by another number of microbatches of the same
        size.

        Raises ConfigError, a ValueError, for what is no multiple of a microbatch on all replicas.
        """
        micro = self._batch.train_micro_batch_size_per_gpu
        steps, rest = divmod(train_batch_size, micro * self.dp_world_size)
        if rest or steps < 1:
            raise ConfigError(
                f"train_batch_size {train_batch_size} is no multiple of "
                f"train_micro_batch_size_per_gpu {micro} x data {self.dp_world_size}"
            )
        self._resize(type(self._batch)(train_batch_size, micro, steps))

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Changes the microbatches' size from the next step on; there are as many as before."""
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size is {micro_batch_size}, must be at least 1")
        steps = self._batch.gradient_accumulation_steps
        whole = micro_batch_size * steps * self.dp_world_size
        self._resize(type(self._batch)(whole, micro_batch_size, steps))

    def _resize(self, batch: Batch) -> None:
        self._batch = batch

    def get_batch_info(self) -> tuple[int, int, int]:
        """Samples of a step, samples of a microbatch, microbatches of a step of one replica."""
        batch = self._batch
        return (
            batch.train_batch_size,
            batch.train_micro_batch_size_per_gpu,
            batch.gradient_accumulation_steps,
        )

    @property
    def enable_backward_allreduce(self) -> bool:
        """True.  Raises ConfigError where it is set to False."""
        return True

    @enable_backward_allreduce.setter
    def enable_backward_allreduce(self, is_enabled: bool) -> None:
        if not is_enabled:
            raise ConfigError(
                "enable_backward_allreduce = False has no effect: gradients are summed once, at "
                "the end of a step; no_sync() and set_gradient_accumulation_boundary() put it off"
            )

    def get_data_parallel_rank(self) -> int:
        """dp_rank."""
        return self.dp_rank

    def get_model_parallel_rank(self) -> int:
        """0: no tensor is divided."""
        return 0

    def get_tensor_parallel_rank(self) -> int:
        """0: no tensor is divided."""
        return 0

    def get_lr(self) -> list[float]:
        """The learning rates of the next step, by parameter group."""
        return self._of_groups("lr")

    def set_lr(self, lr: float) -> None:
        """Sets the next step's rate of all groups; a scheduler's next step sets its own."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def get_mom(self) -> list[Any]:
        """The momentum of each parameter group, or the betas of an Adam."""
        groups = self.optimizer.param_groups
        return self._of_groups("betas" if groups and "betas" in groups[0] else "momentum")

    def get_type(self) -> list[Any]:
        """The "type" of each parameter group, if it has one."""
        return self._of_groups("type")

    def _of_groups(self, key: str) -> list[Any]:
        return [group.get(key) for group in self.optimizer.param_groups]

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

    def get_loss_scale(self) -> float:
        """The same."""
        return self.loss_scale

    def dynamic_loss_scale(self) -> bool:
        """Whether it follows overflows."""
        return self._update.scale.state() is not None

    def gradient_clipping(self) -> float:
        """The largest norm that a step's gradient is let have; 0: any."""
        return self._update.clipping

    def steps_per_print(self) -> int:
        """Steps between two lines of the log; 0: there are none."""
        return self._steps_per_print

    @for_all_ranks("an engine")
    def save_checkpoint(
        self,
        save_dir: str | Path,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> str:
        """Collective: writes all that the next step depends on, and returns the folder.

        save_dir: the same folder for all ranks.  tag: None: "global_stepN"; what it was is replaced
            when the new one is whole.
        client_state: of rank 0: plain values, tensors and such (docs/migrating_from_deepspeed.md),
            which load_checkpoint() returns.
        save_latest: whether load_checkpoint() takes it from now on.
        exclude_frozen_parameters: parameters that nobody trains are left out, and may be missing
            when it is loaded.

        Raises ConfigError and CheckpointError for what cannot be saved, and CommError on the other
        ranks; then the tag is what it was, and the engine goes on.
        """
        folder = self._checkpoints.save(
            Path(save_dir),
            f"global_step{self.global_steps}" if tag is None else str(tag),
            self.global_steps,
            client_state,
            is_latest=save_latest,
            with_frozen=not exclude_frozen_parameters,
        )
        return str(folder)

    @for_all_ranks("an engine")
    def load_checkpoint(
        self,
        load_dir: str | Path,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Collective: goes on from a checkpoint of any layout, of this engine or `penstock train`.

        load_dir: a folder of tags, or one checkpoint.  tag: None: the latest.
        load_module_strict: all weights have to be there, and no others.
        load_module_only: weights and buffers, and nothing else.

        Returns the folder and the client_state; two None where there is no checkpoint yet.
        Raises ConfigError and CheckpointError for what does not fit or is damaged, and CommError on
        the other ranks; then the engine is as it was, and goes on.
        """
        wanted = Wanted(
            strict=load_module_strict,
            optimizer=load_optimizer_states,
            lr_scheduler=load_lr_scheduler_states and not load_module_only,
            module_only=load_module_only,
        )
        tag = None if tag is None else str(tag)
        found = self._checkpoints.load(Path(load_dir), tag, wanted)
        return (None, None) if found is None else (str(found[0]), found[1])

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader[Any]:
        """A loader of microbatches, of this replica's share of a dataset, in a drawn order.

        Every rank of a replica gets the same.
        """
        return self._loader(dataset, batch_size, collate_fn)

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
            drop_last=self.config.settings["dataloader_drop_last"],
        )

    def _sizes(self) -> str:
        """Sizes of a batch, for ranks that compare theirs."""
        return (
            f"{self.train_batch_size()} samples a step, {self.train_micro_batch_size_per_gpu()} a "
            f"microbatch, {self.gradient_accumulation_steps()} microbatches"
        )

    def _facts_of_settings(self, loss_scale: float) -> list[tuple[str, str]]:
        """What all ranks of an engine have in common, whatever its model is."""
        return [
            *self.config.facts(),
            ("ZeRO settings", repr(self._zero)),
            ("batch sizes", self._sizes()),
            ("gradient_clipping", str(float(self.config.settings["gradient_clipping"]))),
            ("loss scale", str(loss_scale)),
            ("types", str(self._type)),
        ]

    def _steps_so_far(self) -> list[tuple[str, str]]:
        """What ranks that take a step together have in common of those before it."""
        return [
            ("steps taken", str(self.global_steps)),
            ("loss scale", str(self._update.scale.value)),
            ("batch sizes", self._sizes()),
        ]

    def _count_step(
        self, outcome: str, samples: int | None = None, loss: float | None = None
    ) -> None:
        """One more; it is in the log and on boards if the configuration says so.

        samples: None: of a batch.  loss: of the step, where it is known.
        """
        self.global_steps += 1
        self.global_samples += self.train_batch_size() if samples is None else samples
        self.tput_timer.begin()
        if self._steps_per_print and self.global_steps % self._steps_per_print == 0:
            _log.info("step %d: %s, lr %s", self.global_steps, outcome, self.get_lr())
        if self.monitor.is_writing:
            self._tell_monitor(loss)

    def _tell_monitor(self, loss: float | None) -> None:
        events: list[tuple[str, float]] = [("lr", rate) for rate in self.get_lr()[:1]]
        if self.fp16_enabled():
            events.append(("loss_scale", self.loss_scale))
        if loss is not None:
            events.append(("train_loss", loss))
        self.monitor.write_events(
            (f"Train/Samples/{name}", value, self.global_samples) for name, value in events
        )
