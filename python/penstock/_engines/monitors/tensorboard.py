"""Events as TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Iterable

from penstock._boards import event_files
from penstock._compatibility import published_as
from penstock._engines.monitors.monitor import Event, Monitor, folder_of, is_first_rank
from penstock._engines.monitors.monitor_sections import TensorBoardConfig

__all__ = ["TensorBoardMonitor"]


class TensorBoardMonitor(Monitor):
    """Scalars in output_path/job_name, written by rank 0.

    summary_writer: torch's SummaryWriter; None on other ranks, and where it is not enabled.
    Raises ConfigError without the package tensorboard, and for a folder that cannot be made.
    """

    def __init__(self, tensorboard_config: TensorBoardConfig) -> None:
        super().__init__(tensorboard_config)
        self.enabled = tensorboard_config.enabled
        self.output_path = tensorboard_config.output_path
        self.job_name = tensorboard_config.job_name
        self.summary_writer = None
        if self.enabled and is_first_rank():
            folder = folder_of(tensorboard_config, "tensorboard")
            self.summary_writer = event_files(folder)

    def write_events(self, event_list: Iterable[Event], flush: bool = True) -> None:
        """flush: readers find them at once."""
        if self.summary_writer is None:
            return
        for name, value, step in event_list:
            self.summary_writer.add_scalar(name, value, step)
        if flush:
            self.summary_writer.flush()

    def flush(self) -> None:
        """Readers find all."""
        if self.summary_writer is not None:
            self.summary_writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self.summary_writer is not None:
            self.summary_writer.close()


published_as("penstock.monitor.tensorboard", globals())
