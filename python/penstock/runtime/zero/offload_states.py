"""The places in which an engine has its states, by DeepSpeed's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import refuse_in
from penstock.runtime.zero.offload_config import OffloadStateTypeEnum

if TYPE_CHECKING:
    from penstock.zero.engine import Engine

__all__ = ["get_state_devices"]

refuse_in(globals())


def get_state_devices(model: Engine, state: OffloadStateTypeEnum) -> set[torch.device]:
    """The CPU, whatever the state; also of what is in files, which are read there."""
    OffloadStateTypeEnum(state)
    return {model.device}
