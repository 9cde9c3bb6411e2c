"""Events as tables: a file for each name."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from penstock._compatibility import published_as
from penstock._engines.monitors.monitor import Event, Monitor, folder_of, is_first_rank
from penstock._engines.monitors.monitor_sections import CSVConfig

__all__ = ["csvMonitor"]


class csvMonitor(Monitor):  # noqa: N801 (DeepSpeed's name)
    """output_path/job_name/Train_Samples_lr.csv and its like, with the columns step and lr.

    Rows are added to files that are there; a file that is new begins with the names of its columns.
    Written by rank 0.  Raises ConfigError for a folder that cannot be made.
    """

    def __init__(self, csv_config: CSVConfig) -> None:
        super().__init__(csv_config)
        self.enabled = csv_config.enabled
        self.output_path = csv_config.output_path
        self.job_name = csv_config.job_name
        self.log_dir: str | None = None
        if self.enabled and is_first_rank():
            self.log_dir = str(folder_of(csv_config, "csv_monitor"))

    def write_events(self, event_list: Iterable[Event]) -> None:
        """A row for each, at the end of its file."""
        if self.log_dir is None:
            return
        for name, value, step in event_list:
            file_name = name.replace("/", "_").replace(" ", "_") + ".csv"
            path = Path(self.log_dir, file_name)
            with path.open("a", encoding="utf-8", newline="") as file:
                rows = csv.writer(file)
                if file.tell() == 0:
                    rows.writerow(["step", name.rpartition("/")[2]])
                rows.writerow([step, value])


published_as("penstock.monitor.csv_monitor", globals())
