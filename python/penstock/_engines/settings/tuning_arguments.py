"""A course of the learning rate from a command line, by DeepSpeed's words.

    parser = add_tuning_arguments(argparse.ArgumentParser())
    section, reason = get_config_from_args(parser.parse_args())

Knows no optimizers: what it makes is a configuration's section `scheduler`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "add_tuning_arguments",
    "get_config_from_args",
    "get_lr_from_config",
    "override_1cycle_params",
    "override_lr_range_test_params",
    "override_params",
    "override_warmupCosineLR_params",
    "override_warmupLR_params",
    "parse_arguments",
]

# Keys of each schedule, with their defaults; a default of bool is a flag that is not given.
_RANGE_TEST: dict[str, Any] = {
    "lr_range_test_min_lr": 0.001,
    "lr_range_test_step_rate": 1.0,
    "lr_range_test_step_size": 1000,
    "lr_range_test_staircase": False,
}
_ONE_CYCLE: dict[str, Any] = {
    "cycle_first_step_size": 1000,
    "cycle_first_stair_count": None,
    "cycle_second_step_size": None,
    "cycle_second_stair_count": None,
    "decay_step_size": 1000,
    "cycle_min_lr": 0.01,
    "cycle_max_lr": 0.1,
    "decay_lr_rate": 0.0,
    "cycle_momentum": False,
    "cycle_min_mom": 0.8,
    "cycle_max_mom": 0.9,
    "decay_mom_rate": 0.0,
}
_RISE: dict[str, Any] = {"warmup_num_steps": 1000, "warmup_type": "log"}
_WARMUP: dict[str, Any] = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.001, **_RISE}
_COSINE: dict[str, Any] = {**_RISE, "warmup_min_ratio": 0.01, "cos_min_ratio": 0.01}
_KEYS_OF: dict[str, Mapping[str, Any]] = {
    "LRRangeTest": _RANGE_TEST,
    "OneCycle": _ONE_CYCLE,
    "WarmupLR": _WARMUP,
    "WarmupDecayLR": _WARMUP,
    "WarmupCosineLR": _COSINE,
}
_RATE_OF = {
    "LRRangeTest": "lr_range_test_min_lr",
    "OneCycle": "cycle_max_lr",
    "WarmupLR": "warmup_max_lr",
    "WarmupDecayLR": "warmup_max_lr",
}


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --lr_schedule and an option for each key of the schedules; returns the parser."""
    group = parser.add_argument_group("learning rate", "of the section scheduler")
    group.add_argument("--lr_schedule", help=f"one of {', '.join(_KEYS_OF)}")
    for key, default in {**_RANGE_TEST, **_ONE_CYCLE, **_WARMUP, **_COSINE}.items():
        if isinstance(default, bool):
            group.add_argument(f"--{key}", action="store_true")
        else:
            kind = int if default is None else type(default)
            group.add_argument(f"--{key}", type=kind, default=default)
    return parser


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """The arguments of this process's command line, and the words that are none of them."""
    return add_tuning_arguments(argparse.ArgumentParser()).parse_known_args()


def override_lr_range_test_params(args: Any, params: dict[str, Any]) -> None:
    """Sets the keys of LRRangeTest that args has."""
    _override(args, params, _RANGE_TEST)


def override_1cycle_params(args: Any, params: dict[str, Any]) -> None:
    """Sets the keys of OneCycle that args has."""
    _override(args, params, _ONE_CYCLE)


def override_warmupLR_params(args: Any, params: dict[str, Any]) -> None:  # noqa: N802
    """Sets the keys of WarmupLR that args has."""
    _override(args, params, _WARMUP)


def override_warmupCosineLR_params(args: Any, params: dict[str, Any]) -> None:  # noqa: N802
    """Sets the keys of WarmupCosineLR that args has."""
    _override(args, params, _COSINE)


def override_params(args: Any, params: dict[str, Any]) -> None:
    """Sets the keys of all schedules that args has."""
    for keys in (_RANGE_TEST, _ONE_CYCLE, _WARMUP, _COSINE):
        _override(args, params, keys)


def get_config_from_args(args: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The section scheduler that args says, and None; or None, and why there is none."""
    name = getattr(args, "lr_schedule", None)
    if name is None:
        return None, "--lr_schedule is not given"
    if name not in _KEYS_OF:
        return None, f"--lr_schedule is {name!r}, must be one of {', '.join(_KEYS_OF)}"
    params: dict[str, Any] = {}
    _override(args, params, _KEYS_OF[name])
    return {"type": name, "params": params}, None


def get_lr_from_config(config: Mapping[str, Any]) -> tuple[float | None, str]:
    """The rate that a section scheduler says, and ""; or None, and why there is none."""
    for key in ("type", "params"):
        if key not in config:
            return None, f"the section scheduler has no {key}"
    name, params = config["type"], config["params"]
    if name not in _KEYS_OF:
        return None, f"scheduler.type is {name!r}, must be one of {', '.join(_KEYS_OF)}"
    if name not in _RATE_OF:
        return None, f"{name} has no rate of its own: it goes by the optimizer's"
    return params[_RATE_OF[name]], ""


def _override(args: Any, params: dict[str, Any], keys: Iterable[str]) -> None:
    given = {key: getattr(args, key, None) for key in keys}
    params.update({key: value for key, value in given.items() if value is not None})
