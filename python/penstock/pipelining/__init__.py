"""PyTorch's pipelining dialect: the names of torch.distributed.pipelining, run by penstock.

    from penstock.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(module, stage_index=rank, num_stages=2, device=torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)
    schedule.step(x)                         # on the rank of the first stage
    schedule.step(target=y, losses=losses)   # on the rank of the last one

Modules, optimizers and process groups stay torch's.  See docs/pipelining.md.
"""

from penstock import _torch  # noqa: F401  (Checks torch as it is imported.)
from penstock.pipelining import actions
from penstock.pipelining._tracer import (
    Pipe,
    PipeInfo,
    SplitPoint,
    TraceError,
    annotate_split_points,
    pipe_split,
    pipeline,
)
from penstock.pipelining.microbatch import (
    TensorChunkSpec,
    merge_chunks,
    split_args_kwargs_into_chunks,
)
from penstock.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    _ScheduleForwardOnly,
    get_schedule_class,
)
from penstock.pipelining.stage import PipelineStage, build_stage

__all__ = [
    "Pipe",
    "PipeInfo",
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "SplitPoint",
    "TensorChunkSpec",
    "TraceError",
    "_ScheduleForwardOnly",
    "actions",
    "annotate_split_points",
    "build_stage",
    "get_schedule_class",
    "merge_chunks",
    "pipe_split",
    "pipeline",
    "split_args_kwargs_into_chunks",
]
