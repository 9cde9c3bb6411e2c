"""The sections fp16 and bf16 of a configuration as objects, by DeepSpeed's names, with pydantic.

    >>> get_float16_config({"fp16": {"enabled": True}}).initial_dynamic_scale()
    65536

What initialize() reads is penstock.configuration's, which judges the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock._compatibility import refuse_in
from penstock.runtime.config_utils import DeepSpeedConfigModel

# isort: split
from pydantic import ValidationInfo, field_validator

__all__ = [
    "DeepSpeedBF16Config",
    "DeepSpeedFP16Config",
    "get_bfloat16_config",
    "get_float16_config",
]

refuse_in(globals())


class DeepSpeedBF16Config(DeepSpeedConfigModel):
    """The section bf16."""

    enabled: bool = False
    immediate_grad_update: bool = False
    check_grad_overflow: bool = True
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False


class DeepSpeedFP16Config(DeepSpeedConfigModel):
    """The section fp16.  loss_scale: 0: it follows overflows, from 2^initial_scale_power on."""

    enabled: bool = False
    auto_cast: bool = False
    loss_scale: float = 0
    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: int = 1
    fp16_master_weights_and_grads: bool = False

    @field_validator("loss_scale", "loss_scale_window", "min_loss_scale", mode="before")
    @classmethod
    def _is_number(cls, value: Any, info: ValidationInfo) -> Any:
        """loss_scale is at least 0, and the others more."""
        name = f"fp16.{info.field_name}"
        if isinstance(value, bool):
            raise ValueError(f"{name} is {value}, must be a number")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} is {value!r}, must be a number") from None
        if not math.isfinite(number):
            raise ValueError(f"{name} is {value!r}, must be finite")
        if number < 0 or (number == 0 and info.field_name != "loss_scale"):
            least = "at least 0" if info.field_name == "loss_scale" else "more than 0"
            raise ValueError(f"{name} is {value!r}, must be {least}")
        return value

    def initial_dynamic_scale(self) -> int:
        """What losses are multiplied by at first."""
        return int(2**self.initial_scale_power)

    def dynamic_loss_scale_args(self) -> dict[str, Any]:
        """How the scale follows overflows, by DeepSpeed's words."""
        return {
            "init_scale": self.initial_dynamic_scale(),
            "scale_window": self.loss_scale_window,
            "delayed_shift": self.hysteresis,
            "consecutive_hysteresis": self.consecutive_hysteresis,
            "min_scale": self.min_loss_scale,
        }


def get_bfloat16_config(param_dict: Mapping[str, Any]) -> DeepSpeedBF16Config:
    """Its section bf16, or bfloat16, which older configurations have."""
    return DeepSpeedBF16Config(**(param_dict.get("bf16") or param_dict.get("bfloat16") or {}))


def get_float16_config(param_dict: Mapping[str, Any]) -> DeepSpeedFP16Config:
    """Its section fp16."""
    return DeepSpeedFP16Config(**param_dict.get("fp16", {}))
