"""Training configurations in DeepSpeed's form: a dict, or a JSON file.

    >>> batch = read({"train_batch_size": 32, "gradient_accumulation_steps": 4}).batch(replicas=2)
    >>> batch.train_micro_batch_size_per_gpu
    4

Every engine reads its configuration here.  A key that penstock does not know is an error, and so is
one that asks for what penstock lacks.  Errors are penstock.ConfigError, which is a ValueError, and
say all that is wrong with the keys at once.  Knows no engines: what one of them lacks, it says.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

__all__ = ["Batch", "Configuration", "read"]

_SECTIONS: dict[str, tuple[str, ...]] = {
    "optimizer": ("type", "params"),
    "scheduler": ("type", "params"),
    "schedule": ("name", "file", "stages_per_rank"),
    "pipeline": (
        "stages",
        "partition",
        "seed_layers",
        "activation_checkpoint_interval",
        "pipe_partitioned",
        "grad_partitioned",
        "use_reentrant",
    ),
    "zero_optimization": (
        "stage",
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "ignore_unused_parameters",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "sub_group_size",
    ),
    "fp16": (
        "enabled",
        "auto_cast",
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
    ),
    "bf16": ("enabled",),
}
_VALUES = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
    "dataloader_drop_last",
    "zero_allow_untested_optimizer",
)
# Keys of DeepSpeed whose other values ask for what penstock lacks.
_ONLY: dict[str, tuple[Any, ...]] = {
    "prescale_gradients": (False,),
    "gradient_predivide_factor": (1,),
    "gradient_allreduce_op": ("mean",),
    "communication_data_type": (None, "fp32"),
    "managed_gradient_accumulation": (True,),
    "disable_allgather": (False,),
    "dump_state": (False,),
    "wall_clock_breakdown": (False,),
    "memory_breakdown": (False,),
}
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@dataclass(frozen=True)
class Batch:
    """Sizes of a step: samples over all ranks, samples of a microbatch, microbatches."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int


@dataclass(frozen=True)
class Configuration:
    """What was read.  values: the top level, without keys whose value is "auto" or None.

    name: of where it came from, for messages.
    """

    values: Mapping[str, Any]
    name: str

    def section(self, key: str) -> Mapping[str, Any]:
        """A section; empty where it is absent."""
        found: Mapping[str, Any] = self.values.get(key, {})
        return found

    def integer(self, key: str, default: int, *, section: str = "", least: int = 0) -> int:
        """An integer, at least `least`."""
        value = (self.section(section) if section else self.values).get(key, default)
        if isinstance(value, float) and value.is_integer():  # 5e8
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            place = f"{section}.{key}" if section else key
            raise ConfigError(
                f"{self.name}: {place} is {value!r}, must be an integer, at least {least}"
            )
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, at least 0."""
        value = self.values.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise ConfigError(f"{self.name}: {key} is {value!r}, must be a number, at least 0")
        return float(value)

    def flag(self, key: str, default: bool, *, section: str = "") -> bool:
        """True or false."""
        value = (self.section(section) if section else self.values).get(key, default)
        if not isinstance(value, bool):
            place = f"{section}.{key}" if section else key
            raise ConfigError(f"{self.name}: {place} is {value!r}, must be true or false")
        return value

    def batch(self, replicas: int) -> Batch:
        """The three sizes, of which two give the third; a size alone takes one microbatch a step.

        Raises ConfigError where none is given, or they do not fit, with what would.
        """
        given = {key: self.integer(key, 0, least=1) for key in _BATCH if key in self.values}
        train, micro, steps = (given.get(key) for key in _BATCH)
        if train is None and micro is None:
            raise ConfigError(
                f"{self.name}: train_batch_size or train_micro_batch_size_per_gpu is needed, with "
                f"or without gradient_accumulation_steps"
            )
        if train is None:
            assert micro is not None
            steps = steps or 1
            return Batch(micro * steps * replicas, micro, steps)
        if micro is None:
            steps = steps or 1
            return Batch(
                train, self._share(train, "gradient_accumulation_steps", steps, replicas), steps
            )
        if steps is None:
            return Batch(train, micro, self._share(train, _BATCH[1], micro, replicas))
        if train != micro * steps * replicas:
            raise ConfigError(
                f"{self.name}: train_batch_size {train} != train_micro_batch_size_per_gpu {micro} "
                f"x gradient_accumulation_steps {steps} x data {replicas}",
                (f"train_batch_size {micro * steps * replicas} works",),
            )
        return Batch(train, micro, steps)

    def _share(self, train: int, key: str, divisor: int, replicas: int) -> int:
        if train % (divisor * replicas):
            raise ConfigError(
                f"{self.name}: train_batch_size {train} is no multiple of {key} {divisor} x data "
                f"{replicas}"
            )
        return train // (divisor * replicas)


def read(config: Mapping[str, Any] | str | Path) -> Configuration:
    """A configuration from a dict, or from a JSON file.

    Raises ConfigError for what cannot be read, for a key that stands twice, and for all keys that
    are unknown or ask for what penstock lacks.
    """
    if isinstance(config, Mapping):
        name, values = "config", dict(config)
    else:
        name, values = str(config), _load(Path(config))
    found = {key: value for key, value in values.items() if value is not None and value != "auto"}
    wrong = list(_objections(found))
    if wrong:
        raise ConfigError(f"{name}: {wrong[0]}", tuple(f"{name}: {each}" for each in wrong[1:]))
    return Configuration(found, name)


def _load(path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise ConfigError(f'{path}: key "{key}" stands twice')
            seen.add(key)
        return dict(pairs)

    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: no JSON: {error.msg}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold an object, {{...}}")
    return values


def _objections(values: dict[str, Any]) -> Iterable[str]:
    known = [*_VALUES, *_SECTIONS, *_ONLY]
    for key, value in values.items():
        if key in _ONLY:
            if value not in _ONLY[key]:
                allowed = " or ".join(map(json.dumps, _ONLY[key]))
                yield f"{key} is {value!r}, and penstock has only {allowed}"
        elif key not in known:
            yield _unknown(key, "", known)
        elif key in _SECTIONS and isinstance(value, Mapping):
            for inner in value:
                if inner not in _SECTIONS[key]:
                    yield _unknown(inner, f" in {key}", _SECTIONS[key])
        elif key in _SECTIONS and key != "schedule":
            yield f"{key} is {value!r}, must be an object, {{...}}"


def _unknown(key: str, where: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f'unknown key "{key}"{where}{hint}'
