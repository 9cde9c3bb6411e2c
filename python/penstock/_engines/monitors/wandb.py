"""Events to Weights & Biases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock._boards import weights_and_biases
from penstock._compatibility import published_as
from penstock._engines.monitors.monitor import Event, Monitor, is_first_rank
from penstock._engines.monitors.monitor_sections import WandbConfig

__all__ = ["WandbMonitor"]


class WandbMonitor(Monitor):
    """A run of rank 0's; the variable WANDB_MODE says whether it is offline, as wandb reads it.

    Raises ConfigError without the package wandb, and where no run begins.
    """

    def __init__(self, wandb_config: WandbConfig) -> None:
        super().__init__(wandb_config)
        self.enabled = wandb_config.enabled
        self.group = wandb_config.group
        self.team = wandb_config.team
        self.project = wandb_config.project
        self._run: Any = None
        if self.enabled and is_first_rank():
            self._run = weights_and_biases(project=self.project, group=self.group, entity=self.team)

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None
    ) -> None:
        """Does what wandb's log() does."""
        if self._run is not None:
            self._run.log(dict(data), step=step, commit=commit)

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Writes events; those of one step are one line of the run's history."""
        for name, value, step in event_list:
            self.log({name: value}, step=step)

    def close(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


published_as("penstock.monitor.wandb", globals())
