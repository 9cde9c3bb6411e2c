"""A Hugging Face model on pipe(2) x data(2) ranks, traced, beside the same model in one piece.

torchrun --nproc-per-node 4 examples/python/hugging_face.py [gpt2 | llama]

The weights are random and the sizes small; the embedding is tied to the head, which is on the other
rank of the pipeline.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from penstock.pipelining import Schedule1F1B, SplitPoint, build_stage, pipeline

VOCABULARY, LENGTH, BATCH, MICROBATCHES, STEPS = 64, 16, 8, 4, 10
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
    "attn_implementation": "eager",
}


def make_model(name: str) -> tuple[nn.Module, str]:
    """The model, and the layer that the second stage begins with."""
    if name == "gpt2":
        gpt2 = GPT2Config(n_positions=LENGTH, n_embd=32, n_layer=4, n_head=4, **SIZES)
        return GPT2LMHeadModel(gpt2), "transformer.h.2"
    llama = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        **SIZES,
    )
    return LlamaForCausalLM(llama), "model.layers.2"


def next_token_loss(output: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = output.logits if hasattr(output, "logits") else output
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipe", "data"))
    pipe_rank, data_rank = mesh["pipe"].get_local_rank(), mesh["data"].get_local_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, second = make_model(sys.argv[1] if len(sys.argv) > 1 else "gpt2")
    model.eval()  # Drops nothing then, so that the two can be compared.
    reference = copy.deepcopy(model)
    batch = torch.randint(VOCABULARY, (2 * BATCH, LENGTH))  # Samples of both replicas.
    tokens = batch.chunk(2)[data_rank]

    pipe = pipeline(model, (tokens[:2],), split_spec={second: SplitPoint.BEGINNING})
    module = pipe.get_stage_module(pipe_rank)
    replica = DistributedDataParallel(module, process_group=mesh["data"].get_group())
    stage = build_stage(replica, pipe_rank, pipe.info(), torch.device("cpu"), mesh["pipe"])
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=next_token_loss)

    # Not Adam, which makes a whole step of a gradient that is nothing but rounding.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.3)
    for step in range(STEPS):
        losses: list[torch.Tensor] = []
        if pipe_rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=losses, return_outputs=False)
        loss = next_token_loss(reference(batch), batch)
        torch.autograd.backward(loss)
        for name, parameter in module.named_parameters():
            expected = reference.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=1e-6)
        for each in (optimizer, reference_optimizer):
            each.step()
            each.zero_grad()
        if losses and data_rank == 0:
            mean = sum(losses, torch.tensor(0.0)) / MICROBATCHES
            print(f"step {step}: loss {mean:.4f} of this half, {loss:.4f} of the batch unsplit")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
