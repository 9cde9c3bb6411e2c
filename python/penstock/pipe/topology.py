"""Ranks on axes, by DeepSpeed's names."""

from typing import Any

from penstock._compatibility import lacking
from penstock._engines.pipeline.topology import *  # noqa: F403
from penstock._engines.pipeline.topology import __all__ as __all__


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: DeepSpeed has it in this module."""
    if name != "PipelineParallelGrid":
        raise lacking(__name__, name)
    from penstock.pipe.grid import PipelineParallelGrid

    return PipelineParallelGrid
