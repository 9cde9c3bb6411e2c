"""Functions in place of actions, written as for torch's runtime, which does less by itself.

They wait for what is received, compute and keep losses, count backwards, scale gradients and hand
on between the stages of a rank.  All of that is done already; it must do no harm, and what would
change a number is an error.  Beside them, orders and batches as subclasses and newer torch have
them.
"""

from __future__ import annotations

import pytest
import ranks
import torch
from models import Reference

from penstock.errors import CommError
from penstock.pipelining.schedules import (
    FORWARD,
    OVERLAP_F_B,
    PipelineScheduleMulti,
    Schedule1F1B,
    ScheduleDualPipeV,
    _Action,
    _PipelineScheduleRuntime,
    _wait_batch_p2p,
)

WORLD_SIZE = 2
MICROBATCHES = 4
PLACEMENT = [[0, 3], [1, 2]]


class Functions:
    """A forward and an overlapped pair."""

    def __init__(self):
        self.forwards = []
        self.pairs = 0
        self.losses = []

    def forward(self, action, ctx):
        schedule = ctx.schedule_ref
        stages = {stage.stage_index: stage for stage in schedule._stages}
        number, microbatch = action.stage_index, action.microbatch_index
        stage = stages[number]
        self.forwards.append((number, microbatch))
        if not stage.is_first and number - 1 not in stages:
            _wait_batch_p2p(schedule.fwd_recv_ops.pop((number, microbatch)))
        output = stage.forward_one_chunk(
            microbatch, ctx.arg_mbs[microbatch], ctx.kwarg_mbs[microbatch]
        )
        assert output.requires_grad
        schedule._maybe_compute_loss(stage, output, ctx.target_mbs, microbatch)
        if number + 1 in stages:
            stages[number + 1].set_local_fwd_input(output, microbatch)

    def pair(self, action, ctx):
        forward, backward = action.sub_actions
        self.forward(forward, ctx)
        self.pairs += 1
        schedule = ctx.schedule_ref
        stages = {stage.stage_index: stage for stage in schedule._stages}
        number, microbatch = backward.stage_index, backward.microbatch_index
        stage = stages[number]
        if not stage.is_last and number + 1 not in stages:
            _wait_batch_p2p(schedule.bwd_recv_ops.pop((number, microbatch)))
        loss = schedule._maybe_get_loss(stage, microbatch)
        assert (loss is not None) == stage.is_last
        self.losses += [] if loss is None else [loss]
        schedule.backward_counter[number] += 1
        stage.backward_one_chunk(microbatch, loss=loss, full_backward=True, last_backward=False)
        stage.scale_grads(schedule._n_microbatches if schedule.scale_grads else 1)
        if number - 1 in stages:
            given = stage.get_local_bwd_output(microbatch)
            stages[number - 1].set_local_bwd_input(given, microbatch)


def check_functions_as_torch_s_runtime_calls_them(group):
    for scale_grads, divisor in ((False, 1), (True, MICROBATCHES)):
        reference = Reference(group, "DualPipeV", placement=PLACEMENT)
        schedule = reference.schedule(ScheduleDualPipeV, MICROBATCHES, scale_grads=scale_grads)
        schedule._prepare_schedule_with_comms(schedule.pipeline_order)
        functions = Functions()
        schedule.register_custom_function(FORWARD, functions.forward)
        schedule.register_custom_function(OVERLAP_F_B, functions.pair)
        x, y = reference.data(0)
        for _ in range(2):
            reference.drop_gradients()
            _, losses = reference.step(schedule, x, y)
            reference.plain_step(x, y)
            for mine, plain in reference.parameters():
                torch.testing.assert_close(mine.grad * divisor, plain.grad, rtol=1e-5, atol=4e-5)
        assert len(functions.forwards) == 2 * 2 * MICROBATCHES
        assert functions.pairs > 0
        if reference.is_last:
            seen = {each.item() for each in functions.losses}
            assert seen and seen <= {each.item() for each in losses}
        assert not schedule.fwd_recv_ops and not schedule.bwd_recv_ops


def check_what_would_change_a_number_is_an_error(group):
    def other_output(action, ctx):
        stages = {stage.stage_index: stage for stage in ctx.schedule_ref._stages}
        output = stages[action.stage_index].forward_one_chunk(action.microbatch_index)
        if action.stage_index + 1 in stages:
            following = stages[action.stage_index + 1]
            following.set_local_fwd_input(2 * output, action.microbatch_index)

    reference = Reference(group, "DualPipeV", placement=PLACEMENT)
    schedule = reference.schedule(ScheduleDualPipeV, MICROBATCHES)
    schedule.register_custom_function(FORWARD, other_output)
    x, y = reference.data(0)
    with pytest.raises(CommError if reference.is_first else ValueError) as caught:
        reference.step(schedule, x, y)
    assert "something else than stage 1 returned" in str(caught.value)
    (stage, *_) = schedule._stages
    with pytest.raises(AssertionError, match="in a function that is registered"):
        stage.backward_weight_one_chunk(0)


def check_a_program_with_its_messages_may_be_set(group):
    class Own(_PipelineScheduleRuntime):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            rows = [
                "0F0 0F1 0SEND_F0 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1",
                "1RECV_F0 1RECV_F1 1F0 1F1 1B0 1B1 1SEND_B0 1SEND_B1",
            ]
            self.pipeline_order_with_comms = {
                rank: [_Action.from_str(each) for each in row.split()]
                for rank, row in enumerate(rows)
            }

    reference = Reference(group, "1F1B")
    schedule = Own(reference.stages(), 2, loss_fn=reference.loss)
    x, y = reference.data(0)
    reference.step(schedule, x, y)
    reference.plain_step(x, y)
    reference.compare_gradients()
    assert [str(each) for each in schedule.pipeline_order_with_comms[0]][2] == "0SEND_F0"


def check_a_subclass_says_where_stages_are(group):
    class Unbalanced(PipelineScheduleMulti):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            rows = ["0F0 1F0 4F0 4B0 1B0 0B0", "2F0 3F0 3B0 2B0"]
            self.pipeline_order = {
                rank: [_Action.from_str(each) for each in row.split()]
                for rank, row in enumerate(rows)
            }
            self._validate_and_set_stage_mapping(self.pipeline_order)

    reference = Reference(group, "own", placement=[[0, 1, 4], [2, 3]])
    schedule = Unbalanced(reference.stages(), 1, loss_fn=reference.loss)
    ranks_of_stages = {0: 0, 1: 0, 2: 1, 3: 1, 4: 0}
    assert all(s.stage_index_to_group_rank == ranks_of_stages for s in schedule._stages)
    x, y = reference.data(0)
    reference.step(schedule, x, y)
    reference.plain_step(x, y)
    reference.compare_gradients()


def check_a_batch_by_microbatch(group):
    """Uneven, as packed sequences are; the same as whole."""
    reference = Reference(group, "1F1B", batch=10)
    schedule = reference.schedule(Schedule1F1B, 3)
    x, y = reference.data(0)
    sizes = (5, 2, 3)
    args = {"arg_mbs": [(part,) for part in x.split(sizes)]} if reference.is_first else {}
    losses = []
    more = {"target_mbs": list(y.split(sizes)), "losses": losses} if reference.is_last else {}
    output = schedule.step(**args, **more)
    plain, loss = reference.plain_step(x, y)
    reference.compare_gradients()
    if reference.is_last:
        torch.testing.assert_close(output, plain)
        torch.testing.assert_close(sum(losses), loss)
        assert [len(each) for each in more["target_mbs"]] == [5, 2, 3]


def check_a_batch_in_both_ways_is_refused(group):
    reference = Reference(group, "1F1B")
    x, y = reference.data(0)
    for words, given, ends in (
        ("whole or by microbatch", {"arg_mbs": [(x,)] * 2}, {}),
        ("must be a list of n_microbatches: 2", {"kwarg_mbs": [{}]}, {}),
        (r"arg_mbs\[0\] is a Tensor, must be a tuple", {"arg_mbs": [x, x]}, None),
    ):
        schedule = reference.schedule(Schedule1F1B, 2)
        args = (x,) if ends is not None else ()
        if reference.is_first:
            with pytest.raises(ValueError, match=words):
                schedule.step(*args, **given)
        else:
            with pytest.raises(CommError, match="rank 0 failed"):
                schedule.step(target=y)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
