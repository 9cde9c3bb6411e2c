"""The keys tensorboard, wandb and csv_monitor as objects, by DeepSpeed's names.

Which keys there are, of which kinds, and their defaults, the C++ library says, as it does to
initialize() (penstock/configuration.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import configuration
from penstock._compatibility import published_as

if TYPE_CHECKING:
    from penstock.configuration import Configuration

__all__ = [
    "CSVConfig",
    "DeepSpeedMonitorConfig",
    "TensorBoardConfig",
    "WandbConfig",
    "get_monitor_config",
]


@dataclass(frozen=True)
class TensorBoardConfig:
    """output_path: a folder; "": where the script runs.  job_name: the folder in it."""

    enabled: bool = False
    output_path: str = ""
    job_name: str = "DeepSpeedJobName"


class CSVConfig(TensorBoardConfig):
    """The same, of tables."""


@dataclass(frozen=True)
class WandbConfig:
    """group: of runs.  team: whose the run is.  project: that it is in."""

    enabled: bool = False
    group: str | None = None
    team: str | None = None
    project: str = "deepspeed"


class DeepSpeedMonitorConfig:
    """What a MonitorMaster writes to.

    tensorboard, wandb, csv_monitor: the sections of a configuration.  enabled: one of them is.
    Raises ConfigError, a ValueError, for keys and values that initialize() refuses.
    """

    def __init__(
        self,
        tensorboard: Mapping[str, Any] | None = None,
        wandb: Mapping[str, Any] | None = None,
        csv_monitor: Mapping[str, Any] | None = None,
        comet: Mapping[str, Any] | None = None,
    ) -> None:
        given = {
            "tensorboard": tensorboard,
            "wandb": wandb,
            "csv_monitor": csv_monitor,
            "comet": comet,
        }
        sections = {key: value for key, value in given.items() if value is not None}
        self._take(configuration.read(sections, needs_sizes=False))

    @classmethod
    def of(cls, config: Configuration) -> DeepSpeedMonitorConfig:
        """The sections of a configuration that was read."""
        made = cls.__new__(cls)
        made._take(config)
        return made

    def _take(self, config: Configuration) -> None:
        settings = config.settings
        self.tensorboard = TensorBoardConfig(**settings["tensorboard"])
        self.wandb = WandbConfig(**settings["wandb"])
        self.csv_monitor = CSVConfig(**settings["csv_monitor"])
        self.enabled = any(
            each.enabled for each in (self.tensorboard, self.wandb, self.csv_monitor)
        )


def get_monitor_config(param_dict: Mapping[str, Any]) -> DeepSpeedMonitorConfig:
    """The sections of a whole configuration, of which these are read."""
    names = ("tensorboard", "wandb", "csv_monitor", "comet")
    return DeepSpeedMonitorConfig(**{name: param_dict.get(name) for name in names})


published_as("penstock.monitor.config", globals())
