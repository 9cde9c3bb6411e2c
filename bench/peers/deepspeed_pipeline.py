"""DeepSpeed's PipelineEngine on the pipeline benchmark.

It has one schedule (1F1B) and cannot do without an optimizer: SGD at learning rate 0, clipping off.
"""

import contextlib
import io
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_LOG_LEVEL", "error")

import torch
import torch.distributed as dist
from ranks import Block, report, run_ranks, time_steps


def body(rank, args, init_method):
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed
        from deepspeed.pipe import LayerSpec, PipelineModule

        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
        deepspeed.init_distributed("gloo", verbose=False)
        loss = torch.nn.MSELoss(reduction="sum")
        module = PipelineModule(
            [LayerSpec(Block, args.width) for _ in range(8)],
            num_stages=2,
            loss_fn=loss,
            partition_method="uniform",
        )
        engine, _, _, _ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
            config={
                "train_micro_batch_size_per_gpu": args.batch // args.microbatches,
                "gradient_accumulation_steps": args.microbatches,
                "gradient_clipping": 0.0,
                "zero_optimization": {"stage": 0},
            },
        )
        x = torch.randn(args.batch, args.width).chunk(args.microbatches)
        target = torch.randn(args.batch, args.width).chunk(args.microbatches)

        def forever():
            while True:
                yield from zip(x, target, strict=True)

        batches = forever()
        times = time_steps(args.steps, lambda: engine.train_batch(batches), lambda: None)
    report("deepspeed", args, times)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(body)
