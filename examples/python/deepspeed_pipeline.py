"""A language model with tied embeddings, as DeepSpeed's users write one, on pipe x data ranks.

torchrun --nproc-per-node 4 examples/python/deepspeed_pipeline.py --schedule zbv
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import penstock
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec

VOCABULARY, WIDTH, BLOCKS, LENGTH = 64, 32, 6, 16
MICROBATCHES, SAMPLES, STEPS = 4, 8, 20
CONFIG = {
    "train_micro_batch_size_per_gpu": SAMPLES,
    "gradient_accumulation_steps": MICROBATCHES,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, num_heads=2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.norms[0](x)
        y, _ = self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)
        x = x + y
        y = self.mlp(self.norms[1](x))
        return x + torch.as_tensor(y)


def to_logits(embedding: nn.Embedding, x: Tensor) -> Tensor:
    return x @ embedding.weight.T


def loss_fn(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def layers() -> list[LayerSpec]:
    return [
        TiedLayerSpec("embedding", nn.Embedding, VOCABULARY, WIDTH),
        *(LayerSpec(Block, WIDTH) for _ in range(BLOCKS)),
        LayerSpec(nn.LayerNorm, WIDTH),
        TiedLayerSpec("embedding", nn.Embedding, VOCABULARY, WIDTH, forward_fn=to_logits),
    ]


def data(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Microbatches of ever other lengths: each word follows from the one before."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        length = int(torch.randint(LENGTH // 2, LENGTH, (1,), generator=generator))
        first = torch.randint(0, VOCABULARY, (SAMPLES, 1), generator=generator)
        tokens = (first + 5 * torch.arange(length + 1)) % VOCABULARY
        yield tokens[:, :-1], tokens[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1f1b")
    arguments = parser.parse_args()
    penstock.init_distributed()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # The same seed gives the same weights, with any number of stages.
    model = PipelineModule(layers(), num_stages=2, loss_fn=loss_fn)
    engine, _, _, _ = penstock.initialize(
        model=model, config={**CONFIG, "schedule": arguments.schedule}
    )
    batches = data(seed=engine.dp_rank)
    losses = []
    for step in range(STEPS):
        losses.append(engine.train_batch(batches).item())
        if step % 5 == 0 and engine.module.global_rank == 0:
            norm = engine.get_global_grad_norm()
            print(f"step {step}: loss {losses[-1]:.4f}, gradient norm {norm:.3f}")
    held_out = engine.eval_batch(data(seed=1000)).item()
    assert held_out < losses[0] / 2 and losses[-1] < losses[0] / 2
    if engine.module.global_rank == 0:
        print(f"{arguments.schedule}: loss {losses[-1]:.4f}, of other data {held_out:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
