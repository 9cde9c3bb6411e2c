"""The section zero_optimization of a configuration as an object, by DeepSpeed's names.

    >>> DeepSpeedZeroConfig(stage=3, stage3_prefetch_bucket_size=1000).prefetch_bucket_size
    1000

Which keys there are, of which kinds, and what penstock refuses, the C++ library says, as it does to
initialize() (penstock/configuration.py).  Here are DeepSpeed's defaults of those that are absent,
and the names of its attributes (penstock.configuration.STAGE3).
"""

from __future__ import annotations

import enum
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from penstock import configuration
from penstock._compatibility import published_as
from penstock._engines.settings.leaf_module_section import DeepSpeedZeroLeafModuleConfig
from penstock._engines.settings.offload_sections import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
)

__all__ = [
    "DeepSpeedZeroConfig",
    "DeepSpeedZeroLeafModuleConfig",
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "OffloadDeviceEnum",
    "ZeroStageEnum",
    "get_zero_config",
]


class ZeroStageEnum(int, enum.Enum):
    """What replicas share."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


# Defaults by attribute.  Keys have the same names, but for those of STAGE3, which begin with
# "stage3_".
_DEFAULTS: dict[str, Any] = {
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 500_000_000,
    "use_multi_rank_bucket_allreduce": True,
    "allgather_partitions": True,
    "allgather_bucket_size": 500_000_000,
    "load_from_fp32_weights": True,
    "elastic_checkpoint": False,
    "sub_group_size": 1_000_000_000,
    "prefetch_bucket_size": 50_000_000,
    "param_persistence_threshold": 100_000,
    "model_persistence_threshold": sys.maxsize,
    "max_live_parameters": 1_000_000_000,
    "max_reuse_distance": 1_000_000_000,
    "gather_16bit_weights_on_model_save": False,
    "module_granularity_threshold": 0,
    "use_all_reduce_for_fetch_params": False,
    "allgather_sequential": False,
    "partition_stream_chunk_size": 0,
    "ignore_unused_parameters": True,
    "legacy_stage1": False,
    "round_robin_gradients": False,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "mics_shard_size": -1,
    "mics_hierarchical_params_gather": False,
    "memory_efficient_linear": True,
    "pipeline_loading_checkpoint": False,
    "override_module_apply": True,
    "log_trace_cache_warnings": False,
    "enable_sanity_checks": False,
}
# The key in the place of an older one, and what is said there of true; None: nothing.
_ON_CPU = {"device": "cpu"}
_OLDER: dict[str, tuple[str, Any]] = {
    "cpu_offload": ("offload_optimizer", _ON_CPU),
    "cpu_offload_param": ("offload_param", _ON_CPU),
    "cpu_offload_use_pin_memory": ("offload_param.pin_memory or offload_optimizer's", None),
    "stage3_gather_fp16_weights_on_model_save": ("stage3_gather_16bit_weights_on_model_save", True),
}


class DeepSpeedZeroConfig:
    """zero_optimization, with an attribute for each key, given or not.

    given: by key, or by attribute.  Of older keys it says which one is in their place.
    Attributes are DeepSpeed's: `prefetch_bucket_size` of `stage3_prefetch_bucket_size`.

    Raises ConfigError, a ValueError, for keys and values that initialize() refuses.  Where no stage
    is given it is 0, and keys of all stages are taken.
    """

    stage: ZeroStageEnum
    overlap_comm: bool
    offload_param: DeepSpeedZeroOffloadParamConfig | None
    offload_optimizer: DeepSpeedZeroOffloadOptimizerConfig | None

    def __init__(self, **given: Any) -> None:
        keys = _without_older({_key_of(name): value for name, value in given.items()})
        of_any_stage = {"stage": int(ZeroStageEnum.max_stage), **keys}
        read = configuration.read({"zero_optimization": of_any_stage}, needs_sizes=False)
        said = read.section("zero_optimization")
        self.stage = ZeroStageEnum(int(said["stage"]) if "stage" in keys else 0)
        self.overlap_comm = bool(said.get("overlap_comm", self.stage == ZeroStageEnum.weights))
        for name, default in _DEFAULTS.items():
            value = said.get(_key_of(name), default)
            setattr(self, name, type(default)(value))
        # A section that is empty is there; the reader has no values for it.
        param, optimizer = keys.get("offload_param"), keys.get("offload_optimizer")
        self.offload_param = None if param is None else DeepSpeedZeroOffloadParamConfig(**param)
        self.offload_optimizer = (
            None if optimizer is None else DeepSpeedZeroOffloadOptimizerConfig(**optimizer)
        )
        self.leaf_module = DeepSpeedZeroLeafModuleConfig(**(keys.get("leaf_module") or {}))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"zero_optimization has no {name!r}")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"DeepSpeedZeroConfig({values})"


def get_zero_config(param_dict: Mapping[str, Any]) -> DeepSpeedZeroConfig:
    """The section of a whole configuration.  `zero_optimization: true` is stage 1."""
    section = param_dict.get("zero_optimization", {})
    if isinstance(section, bool):
        section = {"stage": int(section)}
    return DeepSpeedZeroConfig(**section)


def _key_of(name: str) -> str:
    return f"stage3_{name}" if name in configuration.STAGE3 else name


def _without_older(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Sections as dicts, and newer keys in the place of older ones."""
    found = {key: _plain(value) for key, value in keys.items() if key not in _OLDER}
    for older in keys.keys() & _OLDER.keys():
        newer, value = _OLDER[older]
        warnings.warn(f"zero_optimization.{older} is deprecated: use {newer}", stacklevel=3)
        if value is not None and keys[older]:
            found.setdefault(newer, value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    said = {name: each for name, each in asdict(value).items() if each is not None}
    device = said.get("device")
    return {**said, "device": device.value} if isinstance(device, OffloadDeviceEnum) else said


published_as("penstock.runtime.zero.config", globals())
