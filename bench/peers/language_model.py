"""transformers' Llama over two pipeline ranks: --mode torch (its pipelining) or deepspeed.

The models, their cuts and the step are those of bench/language_model.cpp.  The loss is
transformers' own for language models, adapters are PEFT's.  `peak_rss_mb` is the last stage's,
`start_rss_mb` what it had before its first step.
"""

import contextlib
import io
import os
import resource
from pathlib import Path
from typing import NamedTuple

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
LLAMA = LlamaConfig(
    vocab_size=8192, hidden_size=256, intermediate_size=688, num_hidden_layers=8,
    num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
    attn_implementation="sdpa", use_cache=False,
)  # fmt: skip
SMOLLM2 = LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
    num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=512,
    attn_implementation="sdpa", use_cache=False,
)  # fmt: skip


LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Model(NamedTuple):
    config: LlamaConfig
    cut: int  # Blocks of the first stage, behind the embedding.
    adapters: bool = False


MODELS = {
    "llama": Model(LLAMA, 5),
    "smollm2": Model(SMOLLM2, 19),
    "smollm2_adapters": Model(SMOLLM2, 19, adapters=True),
}


class Blocks(torch.nn.Module):
    """Some of the model's blocks; they find the angles of the positions themselves."""

    def __init__(self, config: LlamaConfig, first: int, end: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(LlamaDecoderLayer(config, i) for i in range(first, end))
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(self, x):
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        angles = self.rotary_emb(x, position_ids=positions)
        for layer in self.layers:
            x = layer(x, position_ids=positions, position_embeddings=angles)
        return x


def with_adapters(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """LoRA on all linears of blocks, which alone is trained."""
    from peft import LoraConfig, inject_adapter_in_model

    for module in modules:
        module.requires_grad_(False)
        if isinstance(module, Blocks):
            lora = LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS)
            inject_adapter_in_model(lora, module)
    return modules


def stage_modules(model: Model, stage: int) -> list[torch.nn.Module]:
    config = model.config
    if stage == 0:
        modules = [
            torch.nn.Embedding(config.vocab_size, config.hidden_size),
            Blocks(config, 0, model.cut),
        ]
    else:
        modules = [
            Blocks(config, model.cut, config.num_hidden_layers),
            LlamaRMSNorm(config.hidden_size, config.rms_norm_eps),
            torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False),
        ]
    return with_adapters(modules) if model.adapters else modules


def loss_of(logits, targets):
    # The targets are the next tokens already.
    return ForCausalLMLoss(logits, None, logits.shape[-1], shift_labels=targets)


def adamw(module: torch.nn.Module):
    trained = [each for each in module.parameters() if each.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-5, fused=True)


def random_tokens(model: Model, sequences: int):
    config = model.config
    return torch.randint(config.vocab_size, (sequences, config.max_position_embeddings))


def torch_step(rank, args):
    from torch.distributed import pipelining

    model = MODELS[args.model]
    module = torch.nn.Sequential(*stage_modules(model, rank))
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, args.microbatches, loss_fn=loss_of)
    optimizer = adamw(module)
    tokens, targets = random_tokens(model, args.batch), random_tokens(model, args.batch)

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
    model = MODELS[args.model]
    # A layer for each stage, so that the cut is where the others have it.
    layers = [torch.nn.Sequential(*stage_modules(model, stage)) for stage in (0, 1)]
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=adamw(module),
        config={
            "train_micro_batch_size_per_gpu": args.batch // args.microbatches,
            "gradient_accumulation_steps": args.microbatches,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": 0},
        },
    )
    tokens = random_tokens(model, args.batch).chunk(args.microbatches)
    targets = random_tokens(model, args.batch).chunk(args.microbatches)

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
