"""All boards of a configuration as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock._compatibility import published_as
from penstock._engines.monitors.csv_files import csvMonitor
from penstock._engines.monitors.monitor import Event, Monitor, is_first_rank
from penstock._engines.monitors.tensorboard import TensorBoardMonitor
from penstock._engines.monitors.wandb import WandbMonitor

if TYPE_CHECKING:
    from penstock._engines.monitors.monitor_sections import DeepSpeedMonitorConfig

__all__ = ["Monitor", "MonitorMaster", "TensorBoardMonitor", "WandbMonitor", "csvMonitor"]

_log = logging.getLogger("penstock")


class MonitorMaster(Monitor):
    """Hands events to each monitor that is enabled, on rank 0; on other ranks it does nothing.

    enabled: as the configuration says, on every rank.  tb_monitor, wandb_monitor, csv_monitor: None
    where there is none.
    A monitor that cannot write is told of once, gets nothing more, and ends no training.
    Raises ConfigError where a package is missing, or a place cannot be made ready.
    """

    def __init__(self, monitor_config: DeepSpeedMonitorConfig) -> None:
        super().__init__(monitor_config)
        self.enabled = monitor_config.enabled
        self.tb_monitor: TensorBoardMonitor | None = None
        self.wandb_monitor: WandbMonitor | None = None
        self.csv_monitor: csvMonitor | None = None
        if is_first_rank():
            if monitor_config.tensorboard.enabled:
                self.tb_monitor = TensorBoardMonitor(monitor_config.tensorboard)
            if monitor_config.csv_monitor.enabled:
                self.csv_monitor = csvMonitor(monitor_config.csv_monitor)
            if monitor_config.wandb.enabled:
                self.wandb_monitor = WandbMonitor(monitor_config.wandb)
        monitors = (self.tb_monitor, self.wandb_monitor, self.csv_monitor)
        self._writing: list[Monitor] = [each for each in monitors if each is not None]

    @property
    def is_writing(self) -> bool:
        """Whether events of this process go anywhere."""
        return bool(self._writing)

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Writes to every monitor."""
        events = list(event_list)
        for monitor in list(self._writing):
            try:
                monitor.write_events(events)
            except OSError as error:
                self._writing.remove(monitor)
                _log.warning(
                    "%s writes nothing from step %d on: %s",
                    type(monitor).__name__,
                    events[0][2] if events else 0,
                    error,
                )

    def close(self) -> None:
        """Ends all of them."""
        writing, self._writing = self._writing, []
        for monitor in writing:
            monitor.close()


published_as("penstock.monitor.monitor", globals())
