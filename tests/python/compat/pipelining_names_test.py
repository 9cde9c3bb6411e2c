"""Names with an underscore that scripts and libraries import, and what they do."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as distributed

from penstock.pipelining import PipelineStage, _ScheduleForwardOnly, schedules, stage
from penstock.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)
from penstock.pipelining._utils import (
    PipeInfo,
    PipeliningMetadataError,
    flatten_args,
    generate_rank_to_stage_mapping,
    generate_stage_to_rank_mapping,
)


def test_each_name_is_one_thing():
    assert _ScheduleForwardOnly is schedules._ScheduleForwardOnly
    assert PipeliningMetadataError is stage.PipeliningMetadataError
    assert PipeInfo.__name__ == "PipeInfo"


def test_where_stages_are():
    assert generate_stage_to_rank_mapping(2, 5) == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    assert list(generate_stage_to_rank_mapping(3, 9, "v").values()) == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert generate_rank_to_stage_mapping(2, 4, "v") == {0: [0, 3], 1: [1, 2]}
    with pytest.raises(ValueError, match="must be a multiple of 2"):
        generate_stage_to_rank_mapping(2, 5, "v")
    with pytest.raises(ValueError, match='must be "loop" or "v"'):
        generate_rank_to_stage_mapping(2, 4, "w")


def test_arguments_are_flattened():
    assert flatten_args((1, {"a": [2, 3]})) == [1, 2, 3]


def _network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


@pytest.mark.parametrize("in_halves", [False, True])
def test_a_backward_of_one_s_own(in_halves):
    """Whole or in halves, accumulated over microbatches, it is autograd's."""
    module, reference = _network(), _network()
    inputs = torch.randn(3, 5, 4)
    for x in inputs:
        mine, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
        reference(plain).square().sum().backward()
        loss = module(mine).square().sum()
        if in_halves:
            before = [copy.copy(each.grad) for each in module.parameters()]
            (gradient,), groups = stage_backward_input([loss], None, [mine], module.parameters())
            assert all(
                (old is None and each.grad is None) or torch.equal(old, each.grad)
                for old, each in zip(before, module.parameters(), strict=True)
            )
            assert not loss.requires_grad and torch.equal(mine.grad, gradient)
            stage_backward_weight(module.parameters(), groups)
            with pytest.raises(ValueError, match=r"a group of params.*once"):
                stage_backward_weight(module.parameters(), groups)
        else:
            (gradient,) = stage_backward(loss, None, (mine,))
            assert mine.grad is None
        torch.testing.assert_close(gradient, plain.grad)
    for each, expected in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(each.grad, expected.grad)


def test_a_weights_backward_without_its_inputs_is_told(tmp_path):
    is_mine = not distributed.is_initialized()
    if is_mine:
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
    try:
        alone = PipelineStage(torch.nn.Linear(2, 2), 0, 1, torch.device("cpu"))
        with pytest.raises(AssertionError, match=r"backward_one_chunk\(full_backward=False\)"):
            alone.backward_weight_one_chunk(bwd_chunk_id=0)
    finally:
        if is_mine:
            distributed.destroy_process_group()
