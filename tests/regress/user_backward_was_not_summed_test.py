"""`loss.backward()` by the script itself, in place of `engine.backward(loss)`.

It added gradients that nobody divided or summed over the replicas: they diverged without ZeRO, and
nothing was updated from ZeRO 1 on, without a word.  The losses have to be those of torch's DDP.
"""

from __future__ import annotations

import contextlib

import ranks
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import penstock

WORLD_SIZE = 2
WIDTH, CLASSES, STEPS, SCALE = 16, 5, 3, 256.0
TYPES = {None: torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Blocks(torch.nn.Module):
    """Two of them computed again in the backward, if there is a kind of it."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.blocks[0](x).tanh()
        for block in self.blocks[1:]:
            if self.kind is None:
                x = block(x).tanh()
            else:
                x = checkpoint(block, x, use_reentrant=self.kind == "reentrant").tanh()
        return self.head(x)


def model_of(kind):
    torch.manual_seed(0)
    return Blocks(kind)


def batch(number, dtype):
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    x = torch.randn(6, WIDTH, generator=generator).to(dtype)
    return x, torch.randint(CLASSES, (6,), generator=generator)


def losses_of_ddp(key, accumulation, kind):
    dtype = TYPES[key]
    model = model_of(kind).to(dtype)
    replica = DistributedDataParallel(model)
    masters = [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.02)
    scale = SCALE if key == "fp16" else 1.0
    losses = []
    for _ in range(STEPS):
        for micro in range(accumulation):
            x, y = batch(micro, dtype)
            is_last = micro == accumulation - 1
            with contextlib.nullcontext() if is_last else replica.no_sync():
                loss = functional.cross_entropy(replica(x), y)
                (loss.float() * scale / accumulation).backward()
            losses.append(loss.item())
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float() / scale
        optimizer.step()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            parameter.grad = None
            parameter.data.copy_(master)
    return losses


def losses_of_engine(key, accumulation, kind, stage):
    config = {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 300,
            "stage3_param_persistence_threshold": WIDTH,
            "stage3_max_live_parameters": 300,
        },
    }
    if key is not None:
        config[key] = {"enabled": True, **({"loss_scale": SCALE} if key == "fp16" else {})}
    engine, _, _, _ = penstock.initialize(model=model_of(kind), config=config)
    losses = []
    for number in range(STEPS * accumulation):
        x, y = batch(number % accumulation, TYPES[key])
        loss = functional.cross_entropy(engine(x), y)
        (engine.scale(loss) if key == "fp16" else loss).backward()
        engine.step()
        losses.append(loss.item())
    return losses


def check_losses_are_those_of_ddp(group):
    del group
    for kind in (None, "reentrant", "not reentrant"):
        for key in TYPES:
            for accumulation in (1, 4):
                expected = torch.tensor(losses_of_ddp(key, accumulation, kind))
                assert expected[-1] < expected[0]
                for stage in range(4):
                    found = torch.tensor(losses_of_engine(key, accumulation, kind, stage))
                    error = (found - expected).abs().max().item()
                    assert error <= 1e-6, (kind, key, accumulation, stage, error)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
