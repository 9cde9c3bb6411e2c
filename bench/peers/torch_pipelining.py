"""torch.distributed.pipelining on the benchmark: schedules of one and two stages a rank.

With PIPELINING=penstock.pipelining in the environment the names are imported from there: what a
script costs whose import lines were changed.
"""

import importlib
import os

import torch
import torch.distributed as dist
from ranks import Block, report, run_ranks, time_steps

PACKAGE = os.environ.get("PIPELINING", "torch.distributed.pipelining")
pipelining = importlib.import_module(PACKAGE)

BLOCKS = 8
ONE_STAGE = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
# Schedules with two stages a rank: r and r + ranks, or, in a V, r and the one that many from the
# end.
TWO_STAGES = {
    "interleaved_1f1b": pipelining.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
}


def make_schedule(rank, args):
    """The schedule, the rank's modules, and whether it has the first and the last stage."""
    if args.schedule in ONE_STAGE:
        kind, indices, stages = ONE_STAGE[args.schedule], (rank,), args.ranks
    else:
        kind, stages = TWO_STAGES[args.schedule], 2 * args.ranks
        second = stages - 1 - rank if args.schedule == "zbv" else rank + args.ranks
        indices = (rank, second)
    blocks = BLOCKS // stages
    device = torch.device(args.device)
    dtype = torch.bfloat16 if args.type == "bf16" else torch.float
    modules = [torch.nn.Sequential(*[Block(args.width) for _ in range(blocks)]) for _ in indices]
    for module in modules:
        module.to(device, dtype)
    parts = [
        pipelining.PipelineStage(module, index, stages, device)
        for module, index in zip(modules, indices, strict=True)
    ]
    loss = torch.nn.MSELoss(reduction="sum")
    schedule = kind(
        parts if len(parts) > 1 else parts[0],
        args.microbatches, loss_fn=loss, scale_grads=False,
    )  # fmt: skip
    return schedule, torch.nn.ModuleList(modules), 0 in indices, stages - 1 in indices


def body(rank, args, init_method):
    backend = "cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=args.ranks)
    schedule, modules, first, last = make_schedule(rank, args)
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.0)
    parameter = next(modules.parameters())
    x = torch.randn(args.batch, args.width, device=parameter.device, dtype=parameter.dtype)
    target = torch.randn_like(x)

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
    run_ranks(body)
