"""Process groups of torch.distributed for the axes of a topology.

    grid = PipelineParallelGrid(engine.module.topology())
    dist.all_reduce(value, group=grid.get_data_parallel_group())

For a script's own messages: penstock's engines have connections of their own, and need no grid.
Which rank is where the topology says (topology.py); a grid adds the groups.

Source: deepspeed.runtime.pipe.topology.
"""

from __future__ import annotations

from penstock import _torch  # First: it says what to install.

# isort: split
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from penstock._calls import for_all_ranks
from penstock._compatibility import published_as
from penstock._engines.pipeline.topology import (
    PipeDataParallelTopology,
    ProcessTopology,
    _prime_factors,
)
from penstock._engines.ranks import process_groups
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["PipelineParallelGrid"]


class PipelineParallelGrid:
    """This rank's groups.  Collective over all ranks: they make all groups together.

    topology: has the axis "pipe", or "data", or both, and others; as many places as there are
        ranks.  None: stages x replicas, of the prime factors of the number of ranks by turns.
    process_group: one of all ranks; None: the default one.

    Ranks in lists are global.  Four groups have this rank:
    pp_group, pp_proc_group: those that differ in "pipe" alone: one copy of the model.
    dp_group, dp_proc_group: those that differ in "data" alone: they hold the same.
    slice_group, slice_proc_group: those that differ in "model" alone; without that axis, this rank.
    ds_model_proc_group: those of one replica: they have its place on "data".
    dp_groups: of all ranks, by place.  p2p_groups: of each rank, itself and the one of the next
        stage, after the last one the first.
    axis_groups: a process group by axis.

    Raises ConfigError for a topology that does not fit, and CommError where ranks differ in it.
    """

    def __init__(
        self,
        topology: ProcessTopology | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        group = process_groups.resolve(process_group)
        self.global_rank, self.world_size = dist.get_rank(), dist.get_world_size()
        with process_groups.telling_who_connects(group):
            self._topo = _checked(topology, dist.get_world_size(group))
        _compare(self._topo, group)
        self._timeout = process_groups.timeout_of(group)
        self._made: dict[tuple[int, ...], ProcessGroup] = {}

        topo, rank = self._topo, self.global_rank
        place = topo.get_coord(rank)
        self.stage_id: int = getattr(place, "pipe", 0)
        self.data_parallel_id: int = getattr(place, "data", 0)
        self.pipe_parallel_size = max(1, topo.get_dim("pipe"))
        self.data_parallel_size = max(1, topo.get_dim("data"))
        self.model_parallel_size = self.slice_parallel_size = max(1, topo.get_dim("model"))
        self.is_first_stage = self.stage_id == 0
        self.is_last_stage = self.stage_id == self.pipe_parallel_size - 1

        groups = {axis: self._mine_of(self._lists(axis)) for axis in topo.get_axis_names()}
        self.axis_groups = {axis: made for axis, (_, made) in groups.items()}
        for axis in ("pipe", "data", "model"):
            groups.setdefault(axis, self._mine_of([[each] for each in range(self.world_size)]))
        self.pp_group, self.pp_proc_group = groups["pipe"]
        self.dp_group, self.dp_proc_group = groups["data"]
        self.slice_group, self.slice_proc_group = groups["model"]
        replicas = [topo.filter_match(data=i) for i in range(topo.get_dim("data"))]
        of_replica, self.ds_model_proc_group = self._mine_of(replicas or [range(self.world_size)])
        self.ds_model_world_size = len(of_replica)
        self.ds_model_rank = of_replica.index(rank)
        self.dp_groups = self._lists("data")
        self.p2p_groups = self._next_stages()

    def topology(self) -> ProcessTopology:
        """The axes of ranks."""
        return self._topo

    def _is_grid_valid(self) -> bool:
        """True: a topology that does not fit the ranks makes no grid."""
        return True

    def stage_to_global(self, stage_id: int, **places: int) -> int:
        """The rank of a stage, at this rank's place on all other axes but those that are given."""
        place = self._topo.get_coord(self.global_rank)._asdict() | places | {"pipe": stage_id}
        return self._topo.get_rank(**place)

    def get_stage_id(self) -> int:
        """This rank's place on "pipe"."""
        return self.stage_id

    def get_data_parallel_id(self) -> int:
        """This rank's place on "data"."""
        return self.data_parallel_id

    def get_global_rank(self) -> int:
        """This rank, among all."""
        return self.global_rank

    def get_pipe_parallel_rank(self) -> int:
        """This rank's place on "pipe"."""
        return self.stage_id

    def get_pipe_parallel_world_size(self) -> int:
        """How many stages there are."""
        return self.pipe_parallel_size

    def get_pipe_parallel_group(self) -> ProcessGroup:
        """The ranks that differ in "pipe" alone."""
        return self.pp_proc_group

    def get_data_parallel_rank(self) -> int:
        """This rank's place on "data"."""
        return self.data_parallel_id

    def get_data_parallel_world_size(self) -> int:
        """How many replicas there are."""
        return self.data_parallel_size

    def get_data_parallel_group(self) -> ProcessGroup:
        """The ranks that differ in "data" alone."""
        return self.dp_proc_group

    def get_model_parallel_rank(self) -> int:
        """This rank's place among those of its replica."""
        return self.ds_model_rank

    def get_model_parallel_world_size(self) -> int:
        """How many ranks a replica has."""
        return self.ds_model_world_size

    def get_model_parallel_group(self) -> ProcessGroup:
        """The ranks of this rank's replica."""
        return self.ds_model_proc_group

    def get_slice_parallel_rank(self) -> int:
        """This rank's place on "model"; 0 where there is no such axis."""
        return self.slice_group.index(self.global_rank)

    def get_slice_parallel_world_size(self) -> int:
        """How many places "model" has; 1 where there is no such axis."""
        return self.slice_parallel_size

    def get_slice_parallel_group(self) -> ProcessGroup:
        """The ranks that differ in "model" alone."""
        return self.slice_proc_group

    def _lists(self, axis: str) -> list[list[int]]:
        """The groups of ranks along an axis; each rank alone where there is none."""
        found = self._topo.get_axis_comm_lists(axis)
        return found or [[each] for each in range(self.world_size)]

    def _mine_of(self, lists: Sequence[Sequence[int]]) -> tuple[list[int], ProcessGroup]:
        """Collective: makes a process group of each list; the one with this rank."""
        for each in lists:
            ranks = tuple(each)
            if ranks not in self._made:  # Groups of the same ranks are one.
                self._made[ranks] = dist.new_group(list(ranks), timeout=self._timeout)
        mine = next(each for each in lists if self.global_rank in each)
        return list(mine), self._made[tuple(mine)]

    def _next_stages(self) -> list[list[int]]:
        following = {
            rank: [rank, ranks[(i + 1) % len(ranks)]]
            for ranks in self._lists("pipe")
            for i, rank in enumerate(ranks)
        }
        return [following[rank] for rank in range(self.world_size)]


def _checked(topology: ProcessTopology | None, ranks: int) -> ProcessTopology:
    if ranks != dist.get_world_size():
        raise ConfigError(f"process_group has {ranks} ranks, must have all {dist.get_world_size()}")
    if topology is None:
        sizes = [1, 1]
        for turn, prime in enumerate(_prime_factors(ranks)):
            sizes[turn % 2] *= prime
        return PipeDataParallelTopology(num_pp=sizes[0], num_dp=sizes[1])
    if topology.world_size() != ranks:
        raise ConfigError(
            f"the topology {topology} is for {topology.world_size()} ranks, and there are {ranks}"
        )
    return topology


@for_all_ranks("penstock.pipe", name="PipelineParallelGrid()")
def _compare(topology: ProcessTopology, group: Any) -> None:
    """Raises CommError with two ranks that differ."""
    _torch.load().agree(process_groups.connect(group), "engine", [("topology", str(topology))])


published_as("penstock.pipe.grid", globals())
