"""DeepSpeed's place for the pipeline; what is in it is that of `penstock.pipe`."""

from typing import TYPE_CHECKING, Any

from penstock import pipe
from penstock._compatibility import lacking
from penstock.pipe import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
    from_program,
    program,
    to_text,
    verify,
)
from penstock.runtime.pipe import schedule, topology

if TYPE_CHECKING:
    from penstock.pipe import LayerSpec, PipelineEngine, PipelineModule, TiedLayerSpec

__all__ = [
    "LayerSpec",
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "PipelineEngine",
    "PipelineModule",
    "ProcessTopology",
    "TiedLayerSpec",
    "from_program",
    "program",
    "schedule",
    "to_text",
    "topology",
    "verify",
]


def __getattr__(name: str) -> Any:
    """What needs torch, as in penstock.pipe."""
    if name not in __all__:
        raise lacking(__name__, name)
    return getattr(pipe, name)
