"""Pipelines of two stages a rank, which meet at the last one."""

from __future__ import annotations

from typing import Any

from penstock._compatibility import published_as
from penstock._engines.pipeline.pipeline_module import PipelineModule

__all__ = ["DualPipeVModule"]


class DualPipeVModule(PipelineModule):
    """A PipelineModule for the schedule "dualpipev": rank i has the stages i and 2 x ranks - 1 - i.

    num_stages, or the axis "pipe" of topology: how many ranks share a replica; all else as of a
    PipelineModule.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, schedule="dualpipev", **kwargs)


published_as("penstock.runtime.pipe.dualpipev", globals())
