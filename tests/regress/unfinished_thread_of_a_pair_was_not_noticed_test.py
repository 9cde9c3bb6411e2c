"""A function that is registered for pairs may run the F and the B on two threads, both at once.

torchtitan's does, so that one computes while the other one communicates.  The executor locked
nothing of what both take, and took a part for done that was still running when the function
returned.  Here the F and the B also wait for each other, in the middle of their modules.
"""

from __future__ import annotations

import threading

import pytest
import ranks
import torch
from models import Reference

from penstock.pipelining.schedules import OVERLAP_F_B, ScheduleDualPipeV

WORLD_SIZE = 2
MICROBATCHES = 6
PLACEMENT = [[0, 3], [1, 2]]


class Meeting(torch.autograd.Function):
    """Passes a value on, and the gradient; with a barrier, not before the other has come."""

    barrier = None
    count = 0

    @staticmethod
    def forward(ctx, x):
        Meeting.wait()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        Meeting.wait()
        return gradient

    @staticmethod
    def wait():
        if Meeting.barrier is not None:
            Meeting.barrier.wait(timeout=20)
            Meeting.count += 1


def _meeting(module):
    module.register_forward_hook(lambda _, args, output: Meeting.apply(output))
    return module


def _both_at_once(action, ctx):
    """As torchtitan's overlap_callback, in short."""
    schedule, (forward, backward) = ctx.schedule_ref, action.sub_actions
    stages = {stage.stage_index: stage for stage in schedule._stages}
    failures = []

    def run_backward():
        stage = stages[backward.stage_index]
        try:
            schedule._assert_unsharded(stage)
            loss = schedule._maybe_get_loss(stage, backward.microbatch_index)
            stage.backward_one_chunk(backward.microbatch_index, loss=loss)
        except BaseException as error:
            failures.append(error)

    Meeting.barrier = threading.Barrier(2)
    thread = threading.Thread(target=run_backward)
    thread.start()
    try:
        stages[forward.stage_index].forward_one_chunk(forward.microbatch_index)
    finally:
        thread.join()
        Meeting.barrier = None
    for each in failures:
        raise each


def _trains(group, wrap, meetings):
    reference = Reference(group, "DualPipeV", placement=PLACEMENT, wrap=wrap, batch=12)
    schedule = reference.schedule(ScheduleDualPipeV, MICROBATCHES)
    schedule.register_custom_function(OVERLAP_F_B, _both_at_once)
    pairs = sum("OVERLAP" in str(each) for each in schedule.pipeline_order[schedule.rank])
    for seed in range(2):
        Meeting.count = 0
        reference.drop_gradients()
        x, y = reference.data(seed)
        reference.step(schedule, x, y)
        reference.plain_step(x, y)
        reference.compare_gradients()
        assert pairs > 0 and Meeting.count == meetings * pairs
        for mine, _ in reference.parameters():
            assert mine.grad.grad_fn is None and not mine.grad.requires_grad


def check_gradients_have_no_graph(group):
    _trains(group, None, 0)


def check_both_parts_of_a_pair_run_at_once(group):
    _trains(group, _meeting, 2)


class Held(torch.autograd.Function):
    """Passes a value on; its backward, while `is_held`, not before it is let go."""

    is_held = False
    reached, let_go = threading.Event(), threading.Event()

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if Held.is_held:
            Held.reached.set()
            Held.let_go.wait(20)
        return gradient


def _held(module):
    module.register_forward_hook(lambda _, args, output: Held.apply(output))
    return module


def check_a_thread_that_is_not_waited_for_is_an_error(group):
    threads = []

    def leaves_its_thread(action, ctx):
        forward, backward = action.sub_actions
        stages = {stage.stage_index: stage for stage in ctx.schedule_ref._stages}
        run_backward = stages[backward.stage_index].backward_one_chunk
        stages[forward.stage_index].forward_one_chunk(forward.microbatch_index)
        Held.is_held = True
        threads.append(threading.Thread(target=run_backward, args=(backward.microbatch_index,)))
        threads[-1].start()
        assert Held.reached.wait(20)

    reference = Reference(group, "DualPipeV", placement=PLACEMENT, wrap=_held, batch=12)
    schedule = reference.schedule(ScheduleDualPipeV, MICROBATCHES)
    schedule.register_custom_function(OVERLAP_F_B, leaves_its_thread)
    x, y = reference.data(0)
    with pytest.raises(RuntimeError, match="must wait for its threads"):
        reference.step(schedule, x, y)
    del schedule
    Held.let_go.set()
    for each in threads:
        each.join(20)
        assert not each.is_alive()


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
