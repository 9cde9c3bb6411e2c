"""A configuration as an object, by DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import configuration
from penstock._compatibility import refuse_in
from penstock.errors import ConfigError

__all__ = ["DeepSpeedConfig", "DeepSpeedConfigError"]

refuse_in(globals())

DeepSpeedConfigError = ConfigError

ADAM_OPTIMIZER, ADAMW_OPTIMIZER, ADAGRAD_OPTIMIZER = "adam", "adamw", "adagrad"
LAMB_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER = "lamb", "lion", "muon"


class DeepSpeedConfig:
    """What initialize() makes of a configuration, over the ranks that there are.

    Attributes are its top-level keys, as they are given; the three sizes of a batch are complete.
    zero_config: its section zero_optimization (penstock/_engines/settings/zero_section.py).
    monitor_config: its boards (penstock/_engines/monitors/monitor_sections.py).
    mpu, mesh_device: must be None.
    Raises ConfigError, as initialize() does.
    """

    def __init__(
        self, config: Mapping[str, Any] | str | Path, mpu: Any = None, mesh_device: Any = None
    ) -> None:
        import torch.distributed as dist

        from penstock.monitor.config import DeepSpeedMonitorConfig
        from penstock.runtime.zero.config import get_zero_config

        if mpu is not None or mesh_device is not None:
            raise ConfigError("mpu and mesh_device must be None: replicas are all ranks")
        has_ranks = dist.is_available() and dist.is_initialized()
        self.world_size = dist.get_world_size() if has_ranks else 1
        self._read = configuration.read(config)
        batch = self._read.batch(self.world_size)
        self.train_batch_size = batch.train_batch_size
        self.train_micro_batch_size_per_gpu = batch.train_micro_batch_size_per_gpu
        self.gradient_accumulation_steps = batch.gradient_accumulation_steps
        self.zero_config = get_zero_config(self._read)
        self.monitor_config = DeepSpeedMonitorConfig.of(self._read)
        self.zero_optimization_stage = int(self.zero_config.stage)
        self.zero_enabled = self.zero_optimization_stage > 0

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_read", {})
        if name not in values:
            raise AttributeError(f"the configuration has no {name!r}")
        return values[name]
