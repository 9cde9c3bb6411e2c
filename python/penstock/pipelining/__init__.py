"""PyTorch's pipelining dialect: the names of torch.distributed.pipelining, on penstock.

So far: models traced and split into stages (`pipeline`), microbatches
(`penstock.pipelining.microbatch`), and actions with the passes over them
(`penstock.pipelining.actions`).
"""

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

__all__ = [
    "Pipe",
    "PipeInfo",
    "SplitPoint",
    "TensorChunkSpec",
    "TraceError",
    "annotate_split_points",
    "merge_chunks",
    "pipe_split",
    "pipeline",
    "split_args_kwargs_into_chunks",
]
