"""The least that Python can do of the benchmark: a rank's forwards and backwards in a plain loop.

No messages, no order among the ranks, nothing shared: both work on the blocks of one stage at the
same time, as in the middle of a step, and no bubble is counted.
"""

import torch
import torch.distributed as dist
from ranks import Block, report, run_ranks, time_steps

BLOCKS = 4  # Blocks of a rank.


def body(rank, args, init_method):
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    module = torch.nn.Sequential(*[Block(args.width) for _ in range(BLOCKS)])
    x = torch.randn(args.batch, args.width, requires_grad=rank > 0)
    gradient = torch.randn(args.batch // args.microbatches, args.width)

    def step():
        for inputs in x.chunk(args.microbatches):
            torch.autograd.backward(module(inputs), gradient)

    def drop():
        x.grad = None
        for parameter in module.parameters():
            parameter.grad = None

    report("plain", args, time_steps(args.steps, step, drop))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(body)
