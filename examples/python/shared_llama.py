"""A small Llama on 2 stages x 2 ranks that share each layer, in a loop of one's own.

    torchrun --nproc-per-node 4 examples/python/shared_llama.py

It learns to count.  Megatron would say --pipeline-model-parallel-size 2
--tensor-model-parallel-size 2 --sequence-parallel.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

import penstock

STEPS, SAMPLES, LENGTH, VOCABULARY = 30, 16, 32, 256


def batch(numbers: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a whole step, and those that follow."""
    first = torch.randint(VOCABULARY, (SAMPLES, 1), generator=numbers)
    counted = (first + torch.arange(LENGTH + 1)) % VOCABULARY
    return counted[:, :-1], counted[:, 1:]


def main() -> None:
    model = Path(__file__).parents[1] / "tiny_llama"  # Its config.json alone.
    trainer = penstock.Trainer(
        {
            "train_batch_size": SAMPLES,
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
            "gradient_clipping": 1.0,
            "model": {
                "type": "hugging_face",
                "path": str(model),
                "weights": "random",
                "sequence_length": LENGTH,
            },
            "mesh": {"pipe": 2, "tensor": 2},
        }
    )
    numbers = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        tokens, targets = batch(numbers)
        mine = [each.chunk(trainer.replicas)[trainer.replica] for each in (tokens, targets)]
        losses.append(trainer.step(*mine).loss)
    held_out = trainer.evaluate(*batch(numbers))
    if dist.get_rank() == 0:
        print(f"{trainer.mesh}: loss {losses[0]:.3f}, then {losses[-1]:.3f}; others {held_out:.3f}")
    assert held_out < losses[0] / 2


if __name__ == "__main__":
    main()
