"""PyTorch's pipelining dialect: the names of torch.distributed.pipelining, on penstock.

So far: microbatches, in `penstock.pipelining.microbatch`, and actions with the passes over them, in
`penstock.pipelining.actions`.
"""

from penstock.pipelining.microbatch import (
    TensorChunkSpec,
    merge_chunks,
    split_args_kwargs_into_chunks,
)

__all__ = ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks"]
