"""penstock.pipe.topology: ranks on axes."""

import pytest

from penstock.pipe.topology import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
)


def test_ranks_are_counted_with_the_last_axis_fastest():
    topology = ProcessTopology(axes=["row", "column"], dims=[2, 3])
    assert topology.world_size() == 6
    assert [topology.get_rank(row=i, column=j) for i in range(2) for j in range(3)] == [*range(6)]
    assert topology.get_coord(4) == (1, 1)
    assert (topology.get_coord(5).row, topology.get_coord(5).column) == (1, 2)
    assert topology.mapping[topology.get_coord(3)] == 3
    assert str(topology) == "row(2) x column(3)"


def test_axes_and_their_ranks():
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=3, num_dp=4)
    assert topology.get_axis_names() == ["pipe", "data", "model"]
    assert [topology.get_dim(axis) for axis in ("pipe", "data", "model", "none")] == [2, 4, 3, 0]
    assert topology.get_axis_list(axis="pipe", idx=1) == [*range(12, 24)]
    assert topology.filter_match(pipe=0, data=1) == [3, 4, 5]
    assert topology.filter_match(pipe=1, data=3, model=2) == [23]
    assert topology.filter_match(pipe=2) == []


def test_every_rank_is_in_one_group_of_an_axis():
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=3)
    for axis in topology.get_axis_names():
        groups = topology.get_axis_comm_lists(axis)
        assert sorted(rank for group in groups for rank in group) == [*range(12)]
        for group in groups:
            places = [topology.get_coord(rank) for rank in group]
            assert [getattr(place, axis) for place in places] == [*range(topology.get_dim(axis))]
            assert len({place._replace(**{axis: 0}) for place in places}) == 1
    assert topology.get_axis_comm_lists("none") == []


def test_pipe_data():
    topology = PipeDataParallelTopology(num_pp=2, num_dp=2)
    assert topology.get_axis_comm_lists("pipe") == [[0, 2], [1, 3]]
    assert topology.get_axis_comm_lists("data") == [[0, 1], [2, 3]]


def test_names_of_ranks():
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    assert [topology.get_rank_repr(rank) for rank in (0, 1)] == ["model_00", "model_01"]
    assert topology.get_rank_repr(7, omit_axes=["pipe"]) == "data_01-model_01"
    assert topology.get_rank_repr(7, ["data"], inner_sep=":", outer_sep="/") == "pipe:01/model:01"
    assert PipeDataParallelTopology(2, 2).get_rank_repr(rank=3) == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ProcessTopology(["a"], [1, 2]), "one for each axis"),
        (lambda: ProcessTopology(["a", "a"], [1, 2]), "each name can stand once"),
        (lambda: ProcessTopology(["a"], [0]), "0 for axis 'a', must be at least 1"),
        (lambda: PipeDataParallelTopology(2, 2).get_rank(pipe=1), "use filter_match()"),
        (lambda: PipeDataParallelTopology(2, 2).get_rank(pipe=1, data=2), "data is 2, must be 0"),
        (lambda: PipeDataParallelTopology(2, 2).get_coord(4), "rank is 4, must be 0 to 3"),
        (lambda: PipeDataParallelTopology(2, 2).filter_match(row=1), "no axis row"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert words in str(caught.value)
