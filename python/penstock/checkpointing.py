"""Activations that are computed again, by DeepSpeed's names; torch.utils.checkpoint does it.

hidden = penstock.checkpointing.checkpoint(layer, hidden)
"""

from __future__ import annotations

from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
from torch.utils.checkpoint import checkpoint as _checkpoint

from penstock import configuration
from penstock._compatibility import refuse_in
from penstock.errors import ConfigError

__all__ = ["checkpoint", "configure", "is_configured", "non_reentrant_checkpoint", "reset"]

refuse_in(globals())

_is_configured = False


def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs), whose activations are computed again when its backward comes."""
    return _checkpoint(function, *args, use_reentrant=False, **kwargs)


non_reentrant_checkpoint = checkpoint


def configure(
    mpu_: Any = None,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Takes what changes nothing that is computed, and reads the configuration, if there is one.

    partition_activations: cuts them under tensor parallelism alone, which engines lack.
    Raises ConfigError for checkpoint_in_cpu: activations are where the rank computes.
    """
    del mpu_, partition_activations, contiguous_checkpointing, num_checkpoints, synchronize, profile
    if checkpoint_in_cpu:
        raise ConfigError(
            "checkpoint_in_cpu must be False: activations are where the rank computes"
        )
    if deepspeed_config is not None:
        configuration.read(deepspeed_config, needs_sizes=False)
    global _is_configured
    _is_configured = True


def is_configured() -> bool:
    """Whether configure() has been called."""
    return _is_configured


def reset() -> None:
    """Nothing is kept between steps."""
