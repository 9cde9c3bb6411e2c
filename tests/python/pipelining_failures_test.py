"""What goes wrong on one of two ranks ends the step on both, and says the same everywhere.

That nobody waits for the group's timeout is seen in the words: a timeout would not know the cause.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback

import pytest
import ranks
import torch
import torch.distributed as dist
from models import CPU, MLP, placed, stages_of

import penstock
from penstock._engines.ranks.process_groups import connect
from penstock.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from penstock.pipelining.stage import PipelineStage, PipeliningMetadataError

WORLD_SIZE = 2
X = torch.ones(8, 4)


def _fails(rank, stage_or_rank_that_fails, error, words, function):
    """Where it happens, `error`; on the other rank, penstock.CommError; both with the words."""
    with pytest.raises((error, penstock.CommError)) as caught:
        function()
    here = rank == stage_or_rank_that_fails
    assert isinstance(caught.value, error if here else penstock.CommError), caught.value
    for word in words:
        assert word in str(caught.value), caught.value
    return caught.value


def _schedule(group, module, kind=Schedule1F1B, loss_fn=None, n_microbatches=4):
    rank = dist.get_rank(group)
    (stage,) = stages_of({rank: module}, 2, group)
    schedule = kind(stage, n_microbatches, loss_fn=loss_fn or torch.nn.MSELoss())

    def step(**more):
        ends = {"target": X} if stage.is_last else {}
        return schedule.step(*placed(stage, X), **{**ends, **more})

    return rank, step


class Raises(torch.nn.Module):
    def __init__(self, where):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.where = where
        self.count = 0

    def forward(self, x):
        self.count += 1
        if self.where == "forward" and self.count == 3:
            raise KeyError("the third forward")
        x = self.linear(x)
        if self.where == "backward" and torch.is_grad_enabled():
            x.register_hook(self.hook)
        if self.where == "function":
            return Function.apply(x)
        return x

    def hook(self, gradient):
        raise KeyError("in a hook")


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("in a function")


def check_an_exception_in_a_forward_keeps_its_traceback(group):
    for failing in range(2):
        rank = dist.get_rank(group)
        module = Raises("forward") if rank == failing else MLP(4)
        rank, step = _schedule(group, module)
        error = _fails(rank, failing, KeyError, ["the third forward"], step)
        if rank == failing:
            assert "in forward" in "".join(traceback.format_tb(error.__traceback__))
            if sys.version_info >= (3, 11):
                assert f"{failing}F2" in error.__notes__[0]
        else:
            assert f"rank {failing}" in str(error) and "KeyError" in str(error)
            assert f"{failing}F2" in str(error) and "pipelining_failures_test.py" in str(error)
        with pytest.raises(penstock.CommError, match="third forward"):  # It is over.
            step()


def check_an_exception_in_a_backward(group):
    for where, words in [("backward", "in a hook"), ("function", "in a function")]:
        rank = dist.get_rank(group)
        rank, step = _schedule(group, Raises(where) if rank == 0 else MLP(4))
        error = _fails(rank, 0, KeyError, [words], step)
        if rank == 0:
            assert "pipelining_failures_test" in "".join(traceback.format_tb(error.__traceback__))


def check_an_exception_in_the_loss(group):
    def loss(output, target):
        raise FloatingPointError("bad loss")

    rank, step = _schedule(group, MLP(4), loss_fn=loss)
    _fails(rank, 1, FloatingPointError, ["bad loss"], step)


def check_losses_that_are_none(group):
    for loss, error, words in [
        (lambda output, target: 1.0, TypeError, "must return a tensor"),
        (lambda output, target: output - target, penstock.Error, "must be a scalar"),
        (lambda output, target: target.sum(), penstock.Error, "does not require a gradient"),
    ]:
        rank, step = _schedule(group, MLP(4), loss_fn=loss)
        _fails(rank, 1, error, [words], step)


def check_a_missing_target(group):
    rank, step = _schedule(group, MLP(4))
    _fails(rank, 1, ValueError, ["no target"], lambda: step(target=None))


def check_a_batch_that_is_too_small(group):
    rank, step = _schedule(group, MLP(4), n_microbatches=9)
    _fails(
        rank, 0, ValueError, ["9"], lambda: step(**({"target": torch.ones(9, 4)} if rank else {}))
    )


class Returns(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.make = make

    def forward(self, x):
        return self.make(self.linear(x))


def check_what_stages_cannot_return(group):
    for make, words in [
        (lambda x: {"x": x}, "a dict"),
        (lambda x: None, "returned None"),
        (lambda x: "text", "a str"),
        (lambda x: (x, 3), "a int, at place 1"),
    ]:
        rank = dist.get_rank(group)
        rank, step = _schedule(group, Returns(make) if rank == 0 else MLP(4))
        _fails(rank, 0, TypeError, ["stage 0", words], step)


def check_ranks_that_differ(group):
    rank = dist.get_rank(group)
    (stage,) = stages_of({rank: MLP(4)}, 2, group)
    for schedule, words in [
        (ScheduleGPipe(stage, 2 + 2 * rank, torch.nn.MSELoss()), "microbatches="),
        ((ScheduleGPipe if rank else Schedule1F1B)(stage, 4, torch.nn.MSELoss()), "gpipe"),
        (ScheduleGPipe(stage, 4, torch.nn.MSELoss() if rank else None), "loss function="),
    ]:
        ends = {"target": X} if rank else {}
        with pytest.raises(penstock.CommError, match=f"do not run the same.*{words}"):
            schedule.step(*placed(stage, X), **ends)


def check_ctrl_c_while_waiting(group):
    class Slow(MLP):
        def forward(self, x):
            time.sleep(1)
            return super().forward(x)

    rank = dist.get_rank(group)
    rank, step = _schedule(group, Slow(4) if rank == 0 else MLP(4))
    # As in a terminal, wherever these tests are run from.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises((KeyboardInterrupt, penstock.CommError)) as caught:
        step()
    if rank == 1:
        assert isinstance(caught.value, KeyboardInterrupt)
    else:
        assert "rank 1 was interrupted" in str(caught.value)


def check_arguments(group):
    rank = dist.get_rank(group)
    module = MLP(4)

    def stage(index, count=2, **more):
        return PipelineStage(module, index, count, CPU, group=group, **more)

    def on(device):
        return PipelineStage(module, rank, 2, torch.device(device), group=group)

    mine = stage(rank)
    for error, words, make in [
        (ValueError, "stage_index is 2", lambda: stage(2)),
        (RuntimeError, "2 ranks for 1 stages", lambda: stage(0, 1)),
        (ValueError, 'must be "cpu" or "cuda"', lambda: on("meta")),
        *([(ValueError, "no CUDA device", lambda: on("cuda"))] * (not torch.cuda.is_available())),
        (PipeliningMetadataError, "must be a tensor", lambda: stage(0, input_args=(None,))),
        (ValueError, "n_microbatches is 0", lambda: Schedule1F1B(mine, 0)),
        (TypeError, "one stage", lambda: Schedule1F1B([mine], 4)),
        (TypeError, "a list of stages", lambda: ScheduleInterleaved1F1B(mine, 4)),
        (ValueError, "microbatches", lambda: Schedule1F1B(mine, 1)),
        (
            ValueError,
            f"stages {rank}, {3 - rank} on rank {rank}".replace("2, 1", "1, 2")
            if rank == 0
            else "stages 1, 2 on rank 1",
            lambda: (
                ScheduleZBVZeroBubble([stage(rank, 4), stage(rank + 2, 4)], 4)
                if rank == 0
                else ScheduleZBVZeroBubble([stage(1, 4), stage(3, 4)], 4)
            ),
        ),
        (RuntimeError, "eval()", lambda: _without_gradients(mine)),
    ]:
        with pytest.raises(error) as caught:
            make()
        assert words in str(caught.value), caught.value
    input_args = stage(rank, input_args=torch.ones(2, 4), output_args=(torch.ones(2, 4),))
    assert input_args.stage_index == rank


def _without_gradients(stage):
    with torch.no_grad():
        ScheduleGPipe(stage, 2, torch.nn.MSELoss()).step()


test_check = ranks.tests_of(__file__, WORLD_SIZE)


def _hurry():
    """Sums, and ends, without giving the interpreter to any other thread.

    A transport's thread that wants it, to let go of a tensor, gets it too late, which aborts.
    """
    communicator = connect(dist.group.WORLD)
    group = communicator.make_group(range(WORLD_SIZE))
    tensor = torch.ones(4)
    sys.setswitchinterval(ranks.DEADLINE_S)
    for _ in range(20):
        communicator.sum(tensor, group)
    assert tensor[0] == WORLD_SIZE**20


def _program(case):
    """A program whose ranks end in some way, beside the checks."""
    rank = ranks.join_group()
    if case == "hurries":
        _hurry()
        return
    module = MLP(4)
    if case == "dies" and rank == 1:
        module.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    rank, step = _schedule(dist.group.WORLD, module)
    if case == "uncaught" and rank == 1:
        module.register_forward_hook(lambda *_: {}["nothing"])
    try:
        step()
    finally:
        if case == "exits":  # Without destroy_process_group(), with everything still alive.
            print("stepped", flush=True)


@pytest.mark.parametrize(
    ("case", "codes", "words"),
    [
        ("exits", [0, 0], "stepped"),
        ("hurries", [0, 0], ""),
        ("uncaught", [1, 1], "rank 1 failed"),
        ("dies", [1, -signal.SIGKILL], "rank 1"),
    ],
)
def test_processes_end(case, codes, words, tmp_path):
    ended = ranks.wait(
        ranks.start(__file__, WORLD_SIZE, tmp_path, "--program", case), ranks.DEADLINE_S
    )
    assert ended == codes, ranks.logs(tmp_path)
    assert words in (tmp_path / "rank-0.log").read_text()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        _program(sys.argv[2])
    else:
        ranks.main(globals())
