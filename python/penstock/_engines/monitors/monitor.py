"""What every monitor is, and which rank writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._compatibility import published_as
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._engines.monitors.monitor_sections import TensorBoardConfig

__all__ = ["Event", "Monitor", "folder_of", "is_first_rank"]

Event = tuple[str, Any, int]  # A name with "/" in it, a value, and the samples so far.


class Monitor(ABC):
    """Takes events.  monitor_config: its own section of a configuration."""

    def __init__(self, monitor_config: Any) -> None:
        self.monitor_config = monitor_config

    @abstractmethod
    def write_events(self, event_list: Iterable[Event]) -> None:
        """Writes events for readers.  Raises OSError where a file cannot be written."""

    def close(self) -> None:
        """Nothing is written after it."""
        return


def is_first_rank() -> bool:
    """Whether this process is rank 0, or the only one."""
    import torch.distributed as dist

    has_ranks = dist.is_available() and dist.is_initialized()
    return not has_ranks or dist.get_rank() == 0


def folder_of(config: TensorBoardConfig, section: str) -> Path:
    """The folder of a section's files; it is made.  Raises ConfigError where it cannot be."""
    folder = Path(config.output_path, config.job_name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f'{section}.output_path = "{config.output_path}": cannot make the folder "{folder}": '
            f"{error.strerror}"
        ) from error
    return folder


published_as("penstock.monitor.monitor", globals())
