"""transformers' Llama over two pipeline ranks: --mode torch (its pipelining) or deepspeed.

The model, its cut and the step are those of bench/language_model.cpp.  The loss is transformers'
own for language models.  `peak_rss_mb` is the last stage's, `start_rss_mb` what it had before its
first step.
"""

import contextlib
import io
import os
import resource
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_LOG_LEVEL", "error")

import ranks
import torch
import torch.distributed as dist
from ranks import report, run_ranks, time_steps
from transformers import LlamaConfig
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

ranks.WARMUP = 2
SEQUENCE = 256
CUT = 5  # Blocks of the first stage, behind the embedding.
CONFIG = LlamaConfig(
    vocab_size=8192, hidden_size=256, intermediate_size=688, num_hidden_layers=8,
    num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=SEQUENCE,
    attn_implementation="sdpa", use_cache=False,
)  # fmt: skip


class Blocks(torch.nn.Module):
    """Some of the model's blocks; they find the angles of the positions themselves."""

    def __init__(self, first: int, end: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(LlamaDecoderLayer(CONFIG, i) for i in range(first, end))
        self.rotary_emb = LlamaRotaryEmbedding(CONFIG)

    def forward(self, x):
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        angles = self.rotary_emb(x, position_ids=positions)
        for layer in self.layers:
            x = layer(x, position_ids=positions, position_embeddings=angles)
        return x


def stage_modules(stage: int) -> list[torch.nn.Module]:
    if stage == 0:
        return [torch.nn.Embedding(CONFIG.vocab_size, CONFIG.hidden_size), Blocks(0, CUT)]
    return [
        Blocks(CUT, CONFIG.num_hidden_layers),
        LlamaRMSNorm(CONFIG.hidden_size, CONFIG.rms_norm_eps),
        torch.nn.Linear(CONFIG.hidden_size, CONFIG.vocab_size, bias=False),
    ]


def loss_of(logits, targets):
    # The targets are the next tokens already.
    return ForCausalLMLoss(logits, None, CONFIG.vocab_size, shift_labels=targets)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def random_tokens(sequences: int):
    return torch.randint(CONFIG.vocab_size, (sequences, SEQUENCE))


def torch_step(rank, args):
    from torch.distributed import pipelining

    module = torch.nn.Sequential(*stage_modules(rank))
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, args.microbatches, loss_fn=loss_of)
    optimizer = adamw(module.parameters())
    tokens, targets = random_tokens(args.batch), random_tokens(args.batch)

    def step():
        inputs = (tokens,) if rank == 0 else ()
        ends = {"target": targets, "losses": []} if rank == 1 else {}
        schedule.step(*inputs, **ends, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    return step


def deepspeed_step(args):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed("gloo", verbose=False)
    # A layer for each stage, so that the cut is where the others have it.
    layers = [torch.nn.Sequential(*stage_modules(stage)) for stage in (0, 1)]
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=adamw(module.parameters()),
        config={
            "train_micro_batch_size_per_gpu": args.batch // args.microbatches,
            "gradient_accumulation_steps": args.microbatches,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": 0},
        },
    )
    tokens = random_tokens(args.batch).chunk(args.microbatches)
    targets = random_tokens(args.batch).chunk(args.microbatches)

    def forever():
        while True:
            yield from zip(tokens, targets, strict=True)

    batches = forever()
    return lambda: engine.train_batch(batches)


def rss_mb() -> float:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE") / 2**20


def of_last_stage(value: float) -> float:
    mine = torch.tensor(value if dist.get_rank() == 1 else 0.0)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return round(mine.item(), 1)


def body(rank, args, init_method):
    with contextlib.redirect_stdout(io.StringIO()):
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
        step = torch_step(rank, args) if args.mode == "torch" else deepspeed_step(args)
        before = rss_mb()
        times = time_steps(args.steps, step, lambda: None)
    args.peak_rss_mb = of_last_stage(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    args.start_rss_mb = of_last_stage(before)
    report(args.mode, args, times)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(body)
