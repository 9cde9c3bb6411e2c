"""Trains a small model by DeepSpeed, or by penstock with another import line.

Usage: trains.py PACKAGE KIND FOLDER, by two ranks of torchrun.
       trains.py PACKAGE KIND FOLDER CHECKPOINT [KIND FOLDER CHECKPOINT]...
PACKAGE: deepspeed or penstock.  KIND: zero1, zero2, zero3, pipe0, pipe1 (a pipeline, ZeRO 0 or 1),
pipe1bf16.  Without CHECKPOINT: three steps, a checkpoint in FOLDER, three more steps, whose losses
are FOLDER/after0.json and after1.json.  With it: takes it up, does those three steps, and writes by
how much the losses differ, relatively.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

WORDS, WIDTH, BEFORE, STEPS = 11, 16, 3, 6


class Net(torch.nn.Module):
    """With a tied and a frozen parameter, and buffers."""

    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(WORDS, WIDTH)
        self.a = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.b = torch.nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.emb.weight
        self.frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)

    def forward(self, x):
        y = self.norm(self.b(self.a(self.emb(x)).tanh())) + self.frozen.sum()
        return self.head(y)


def config_of(kind):
    stage = int(kind[4])
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2 if kind.startswith("pipe") else 1,
        # DeepSpeed's pipeline without ZeRO clips by the norm of its first stage.
        "gradient_clipping": 0.0 if kind == "pipe0" else 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        "zero_optimization": {"stage": stage},
    }
    return {**config, "bf16": {"enabled": True}} if kind.endswith("bf16") else config


def data(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randint(WORDS, (2, 4), generator=generator)
    return x, y


def plain(package, kind):
    model = Net()
    trained = [each for each in model.parameters() if each.requires_grad]
    engine, *_ = package.initialize(model=model, model_parameters=trained, config=config_of(kind))

    def step(number):
        x, y = data(number, dist.get_rank())
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        return loss.item()

    return engine, step


def pipeline(package, kind):
    pipe = importlib.import_module(f"{package.__name__}.pipe")

    def head(module, x):
        return torch.nn.functional.linear(x, module.weight)

    layers = [
        pipe.TiedLayerSpec("emb", torch.nn.Embedding, WORDS, WIDTH),
        pipe.LayerSpec(torch.nn.Linear, WIDTH, 3 * WIDTH),
        pipe.LayerSpec(torch.nn.Linear, 3 * WIDTH, WIDTH),
        pipe.LayerSpec(torch.nn.LayerNorm, WIDTH),
        pipe.TiedLayerSpec("emb", torch.nn.Embedding, WORDS, WIDTH, forward_fn=head),
    ]
    model = pipe.PipelineModule(
        layers,
        num_stages=2,
        loss_fn=torch.nn.functional.cross_entropy,
        partition_method="uniform",
    )
    trained = [each for each in model.parameters() if each.requires_grad]
    engine, *_ = package.initialize(model=model, model_parameters=trained, config=config_of(kind))

    def step(number):
        return engine.train_batch(iter([data(10 * number + i, 0) for i in range(2)])).item()

    return engine, step


def started(package, kind):
    torch.manual_seed(0)
    return (pipeline if kind.startswith("pipe") else plain)(package, kind)


def save(package, kind, folder):
    engine, step = started(package, kind)
    for number in range(BEFORE):
        step(number)
    engine.save_checkpoint(folder, client_state={"epoch": 7})
    after = [step(number) for number in range(BEFORE, STEPS)]
    (Path(folder) / f"after{dist.get_rank()}.json").write_text(json.dumps(after))


def compare(package, kind, folder, checkpoint):
    engine, step = started(package, kind)
    _, state = engine.load_checkpoint(checkpoint)
    assert (state["epoch"], engine.global_steps) == (7, BEFORE), (state, engine.global_steps)
    found = [step(number) for number in range(BEFORE, STEPS)]
    expected = json.loads((Path(folder) / f"after{dist.get_rank()}.json").read_text())
    different = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
    (Path(checkpoint) / f"different{dist.get_rank()}").write_text(str(different))


def main(name, *words):
    torch.set_num_threads(1)
    package = importlib.import_module(name)
    package.init_distributed("gloo")
    if len(words) == 2:
        save(package, *words)
    else:
        for first in range(0, len(words), 3):
            compare(package, *words[first : first + 3])
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
