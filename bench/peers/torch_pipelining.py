"""torch.distributed.pipelining on the pipeline benchmark: ScheduleGPipe and Schedule1F1B."""

import torch
import torch.distributed as dist
from common import Block, report, run_two_ranks, time_steps
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def body(rank, args, init_method):
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    module = torch.nn.Sequential(*[Block(args.width) for _ in range(4)])
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    loss = torch.nn.MSELoss(reduction="sum")
    schedule = SCHEDULES[args.schedule](stage, args.microbatches, loss_fn=loss, scale_grads=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    x = torch.randn(args.batch, args.width)
    target = torch.randn(args.batch, args.width)

    def step():
        if rank == 0:
            schedule.step(x, return_outputs=False)
        else:
            schedule.step(target=target, losses=[], return_outputs=False)
        if args.sgd:
            optimizer.step()

    def drop():
        for parameter in module.parameters():
            parameter.grad = None

    report("torch", args, time_steps(args.steps, step, drop))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_two_ranks(body)
