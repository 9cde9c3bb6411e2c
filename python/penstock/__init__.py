"""penstock: pipeline parallelism as programs that are proved before they run.

    >>> import penstock
    >>> schedule = penstock.schedule.generate("zbv", ranks=4, microbatches=8)

penstock.schedule: generate, verify, simulate, search and draw schedules; plan layouts.  No torch.
penstock.lint: the same of a schedule object of torch.distributed.pipelining, or of a file.
penstock.pipe.schedule: DeepSpeed's schedules, by another import line.
penstock.initialize: an engine that trains a module or a penstock.pipe.PipelineModule.
penstock.Trainer: a model of `penstock train`, on meshes whose ranks share layers, too.
penstock.emulate: a step of one's own layers on devices that are not there.
penstock.zero: what models say about parameters of ZeRO 3.  penstock.accelerator: the device.
penstock.pipelining: torch.distributed.pipelining, by another import line.
penstock.comm, utils, ops, checkpointing, runtime: what else DeepSpeed has there.
penstock.swap: runs a script on penstock without changing it.
"""

from penstock import _safe_path  # noqa: F401  Before anything is imported from that folder.

# isort: split
import importlib
from typing import Any

from penstock import errors, pipe, schedule
from penstock._compatibility import lacking
from penstock._distributed import init_distributed
from penstock._engines.initialize import add_config_arguments, initialize
from penstock._lint import lint
from penstock._planning import __version__
from penstock.errors import (
    CheckpointError,
    CommError,
    ConfigError,
    Error,
    ParseError,
    ScheduleError,
)

__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "Error",
    "ParseError",
    "ScheduleError",
    "__version__",
    "add_config_arguments",
    "errors",
    "init_distributed",
    "initialize",
    "lint",
    "pipe",
    "schedule",
]


_MODULES = (
    *("accelerator", "checkpoint", "checkpointing", "comm", "configuration", "git_version_info"),
    *("lr_schedules", "moe", "monitor", "ops", "pipelining", "runtime", "utils", "zero"),
)
_FROM = {
    "ADAM_OPTIMIZER": "penstock.runtime.config",
    "DeepSpeedConfig": "penstock.runtime.config",
    "DeepSpeedConfigError": "penstock.runtime.config",
    "DeepSpeedEngine": "penstock.runtime.engine",
    "PipelineEngine": "penstock.pipe.engine",
    "PipelineModule": "penstock.pipe.module",
    "Trainer": "penstock._engines.trainer",
    "emulate": "penstock._engines.emulated",
    "DeepSpeedOptimizer": "penstock.runtime.base_optimizer",
    "LAMB_OPTIMIZER": "penstock.runtime.config",
    "MUON_OPTIMIZER": "penstock.runtime.config",
    "add_tuning_arguments": "penstock.runtime.lr_schedules",
    "get_accelerator": "penstock.accelerator",
    "log_dist": "penstock.utils",
    "logger": "penstock.utils",
}


_NONE = "[none]"  # What DeepSpeed says where it was built of no repository.


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is used."""
    if name in _MODULES:
        return importlib.import_module(f"penstock.{name}")
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    if name in ("__git_hash__", "__git_branch__"):
        return _NONE
    if name in ("__version_major__", "__version_minor__", "__version_patch__"):
        place = ("major", "minor", "patch").index(name.strip("_").removeprefix("version_"))
        return int(__version__.split("+")[0].split(".")[place])
    raise lacking(__name__, name)
