"""The places in which ZeRO keeps what ranks share, as objects, by DeepSpeed's names."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from penstock._compatibility import published_as

__all__ = [
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
]


class OffloadDeviceEnum(str, enum.Enum):
    """Nowhere else, in host memory, or in files."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, enum.Enum):
    """What an engine has: optimizer states, masters of 32 bits, parameters, gradients, buckets."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


@dataclass
class DeepSpeedZeroOffloadParamConfig:
    """zero_optimization.offload_param.  Sizes are in elements; defaults are DeepSpeed's."""

    device: OffloadDeviceEnum = OffloadDeviceEnum.none
    nvme_path: str | None = None
    buffer_count: int = 5
    buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000
    pin_memory: bool = True

    def __post_init__(self) -> None:
        self.device = OffloadDeviceEnum(self.device)


@dataclass
class DeepSpeedZeroOffloadOptimizerConfig:
    """zero_optimization.offload_optimizer.  Defaults are DeepSpeed's."""

    device: OffloadDeviceEnum = OffloadDeviceEnum.none
    nvme_path: str | None = None
    buffer_count: int = 4
    pin_memory: bool = True
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    ratio: float = 1.0
    super_offload: bool = False

    def __post_init__(self) -> None:
        self.device = OffloadDeviceEnum(self.device)

    @property
    def pipeline(self) -> bool:
        """Whether states are read, or written, while others are updated."""
        return self.pipeline_read or self.pipeline_write


published_as("penstock.runtime.zero.offload_config", globals())
