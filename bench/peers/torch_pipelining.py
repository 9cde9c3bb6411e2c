"""torch.distributed.pipelining on the benchmark: schedules of one and two stages a rank.

With PIPELINING=penstock.pipelining in the environment the names are imported from there: what a
script costs whose import lines were changed.
"""

import importlib
import os

import torch
import torch.distributed as dist
from two_ranks import Block, report, run_two_ranks, time_steps

PACKAGE = os.environ.get("PIPELINING", "torch.distributed.pipelining")
pipelining = importlib.import_module(PACKAGE)

BLOCKS = 8
ONE_STAGE = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
# Each with the stages of rank 0 and of rank 1.
TWO_STAGES = {
    "interleaved_1f1b": (pipelining.ScheduleInterleaved1F1B, [(0, 2), (1, 3)]),
    "interleaved_zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, [(0, 2), (1, 3)]),
    "zbv": (pipelining.ScheduleZBVZeroBubble, [(0, 3), (1, 2)]),
}


def make_schedule(rank, args):
    """The schedule, the rank's modules, and whether it has the first and the last stage."""
    if args.schedule in ONE_STAGE:
        kind, indices, stages = ONE_STAGE[args.schedule], (rank,), 2
    else:
        kind, placement = TWO_STAGES[args.schedule]
        indices, stages = placement[rank], 4
    blocks = BLOCKS // stages
    modules = [torch.nn.Sequential(*[Block(args.width) for _ in range(blocks)]) for _ in indices]
    parts = [
        pipelining.PipelineStage(module, index, stages, torch.device("cpu"))
        for module, index in zip(modules, indices, strict=True)
    ]
    loss = torch.nn.MSELoss(reduction="sum")
    schedule = kind(
        parts if len(parts) > 1 else parts[0],
        args.microbatches, loss_fn=loss, scale_grads=False,
    )  # fmt: skip
    return schedule, torch.nn.ModuleList(modules), 0 in indices, stages - 1 in indices


def body(rank, args, init_method):
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    schedule, modules, first, last = make_schedule(rank, args)
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.0)
    x = torch.randn(args.batch, args.width)
    target = torch.randn(args.batch, args.width)

    def step():
        inputs = (x,) if first else ()
        ends = {"target": target, "losses": []} if last else {}
        schedule.step(*inputs, **ends, return_outputs=False)
        if args.sgd:
            optimizer.step()

    def drop():
        for parameter in modules.parameters():
            parameter.grad = None

    report("torch" if "torch" in PACKAGE else "python", args, time_steps(args.steps, step, drop))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_two_ranks(body)
