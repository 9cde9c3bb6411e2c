"""DeepSpeed's ZeRO 1 to 3 and torch's DDP and FSDP2 on the ZeRO benchmark of bench/zero.cpp.

--mode zero1, zero2, zero3, ddp or fsdp2.  The batch is that of one replica and of one forward.  All
step a fused torch optimizer; gradients are means over the replicas.
"""

import contextlib
import io
import os
import resource

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_LOG_LEVEL", "error")

import torch
import torch.distributed as dist
from ranks import Block, report, run_ranks, time_steps


def optimizer_of(args, parameters):
    if args.adam:
        return torch.optim.Adam(parameters, lr=1e-6, fused=True)
    # What FSDP2 shards has no fused SGD.
    return torch.optim.SGD(parameters, lr=1e-6, fused=args.mode != "fsdp2")


def deepspeed_step(args, x, target, loss_of):
    import deepspeed

    deepspeed.init_distributed("gloo", verbose=False)
    model = torch.nn.Sequential(*[Block(args.width) for _ in range(8)])
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer_of(args, model.parameters()),
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": args.batch,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": int(args.mode[-1])},
            "zero_allow_untested_optimizer": True,
        },
    )

    def step():
        engine.backward(loss_of(engine(x), target))
        engine.step()

    return step


def torch_step(args, x, target, loss_of):
    model = torch.nn.Sequential(*[Block(args.width) for _ in range(8)])
    if args.mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = optimizer_of(args, model.parameters())

    def step():
        loss_of(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def body(rank, args, init_method):
    with contextlib.redirect_stdout(io.StringIO()):
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
        x, target = torch.randn(args.batch, args.width), torch.randn(args.batch, args.width)
        make = deepspeed_step if args.mode.startswith("zero") else torch_step
        step = make(args, x, target, torch.nn.MSELoss(reduction="sum"))
        times = time_steps(args.steps, step, lambda: None)
    rss = torch.tensor(float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024)
    dist.all_reduce(rss, op=dist.ReduceOp.MAX)
    args.peak_rss_mb = round(rss.item(), 1)
    report("deepspeed" if args.mode.startswith("zero") else "torch", args, times)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(body)
