"""Names of torch.distributed.pipelining._utils that scripts import.

What torch has there for its own messages (descriptions of tensors, recognised by both ends) is not
needed here: forms are announced by the C++ library.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from penstock import _arguments
from penstock._compatibility import refuse_in
from penstock._engines.stages.sent_tensors import GetMesh as GetMeshCallback
from penstock.pipelining._tracer import PipeInfo
from penstock.pipelining.stage import PipeliningMetadataError

__all__ = [
    "GetMeshCallback",
    "PipeInfo",
    "PipeliningMetadataError",
    "flatten_args",
    "generate_rank_to_stage_mapping",
    "generate_stage_to_rank_mapping",
]

refuse_in(globals())


def flatten_args(args: Any) -> list[Any]:
    """The values within nested tuples, lists and dicts."""
    return list(pytree.tree_leaves(args))


def generate_stage_to_rank_mapping(
    pp_size: int, num_stages: int, style: str = "loop"
) -> dict[int, int]:
    """The rank of each stage: "loop", from the first rank again, or "v", back and forth.

    Raises ValueError for another style, and for "v" where ranks would differ in their stages.
    """
    ranks = _arguments.integer("pp_size", pp_size)
    stages = _arguments.integer("num_stages", num_stages)
    if ranks < 1:
        raise ValueError(f"pp_size is {ranks}, must be at least 1")
    if style == "loop":
        return {stage: stage % ranks for stage in range(stages)}
    if style != "v":
        raise ValueError(f'style is {style!r}, must be "loop" or "v"')
    if stages % ranks != 0:
        raise ValueError(f'num_stages is {stages}, must be a multiple of {ranks} for style "v"')
    return {
        stage: stage % ranks if stage // ranks % 2 == 0 else ranks - 1 - stage % ranks
        for stage in range(stages)
    }


def generate_rank_to_stage_mapping(
    pp_size: int, num_stages: int, style: str = "loop"
) -> dict[int, list[int]]:
    """The stages of each rank, in rising order; see generate_stage_to_rank_mapping()."""
    stages: dict[int, list[int]] = {}
    for stage, rank in generate_stage_to_rank_mapping(pp_size, num_stages, style).items():
        stages.setdefault(rank, []).append(stage)
    return stages
