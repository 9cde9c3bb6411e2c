"""DeepSpeed's pipeline dialect: its schedules, what proves them, and what trains.

>>> from penstock.pipe import schedule, verify
>>> bool(verify(schedule.TrainSchedule(micro_batches=8, stages=4, stage_id=0)))
True

penstock.pipe.schedule, verify, program, from_program, to_text: without torch.
penstock.pipe.topology: ranks on axes, without torch.
PipelineModule, LayerSpec, TiedLayerSpec: a model as a list of layers; penstock.initialize() makes
an engine of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock._compatibility import lacking
from penstock.pipe import schedule, topology
from penstock.pipe.topology import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
)
from penstock.pipe.verification import from_program, program, to_text, verify

if TYPE_CHECKING:
    from penstock._engines.pipeline.dualpipev_module import DualPipeVModule
    from penstock.pipe.engine import PipelineEngine
    from penstock.pipe.grid import PipelineParallelGrid
    from penstock.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec

__all__ = [
    "DualPipeVModule",
    "LayerSpec",
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "PipelineEngine",
    "PipelineModule",
    "PipelineParallelGrid",
    "ProcessTopology",
    "TiedLayerSpec",
    "from_program",
    "program",
    "schedule",
    "to_text",
    "topology",
    "verify",
]

_MODULES = ("engine", "grid", "module", "specs")
_WITH_TORCH = {
    "DualPipeVModule": "penstock._engines.pipeline.dualpipev_module",
    "LayerSpec": "penstock.pipe.module",
    "PipelineEngine": "penstock.pipe.engine",
    "PipelineModule": "penstock.pipe.module",
    "PipelineParallelGrid": "penstock.pipe.grid",
    "TiedLayerSpec": "penstock.pipe.module",
}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for."""
    if name not in _WITH_TORCH and name not in _MODULES:
        raise lacking(__name__, name)
    import importlib

    importlib.import_module("penstock._torch")  # Checks torch.
    if name in _MODULES:
        return importlib.import_module(f"penstock.pipe.{name}")
    return getattr(importlib.import_module(_WITH_TORCH[name]), name)
