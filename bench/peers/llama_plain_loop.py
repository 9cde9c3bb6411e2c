"""transformers' Llama, trained by a plain loop on one device: FOLDER's config.json, random weights.

Weights are bf16, and so are the moments of torch's fused AdamW: nothing is kept in float.  Prints
one JSON line; a step ends when its loss is on the host.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    for name in ("--sequence", "--batch", "--microbatches", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--recompute", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(7)
    config = AutoConfig.from_pretrained(args.folder)
    config.use_cache = False
    with device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.train()
    if args.recompute:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    shape = (args.microbatches, args.batch // args.microbatches, args.sequence)
    times = []
    for _ in range(args.steps + 3):
        torch.cuda.synchronize()
        start = time.monotonic()
        # As a loader leaves them: in host memory.
        tokens = torch.randint(config.vocab_size, shape).to(device)
        losses = []
        for microbatch in tokens:
            loss = model(input_ids=microbatch, labels=microbatch).loss / args.microbatches
            loss.backward()
            losses.append(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        loss = (torch.stack(losses).sum().item(), norm.item())
        times.append(time.monotonic() - start)
    print(json.dumps({
        "median_ms": 1e3 * statistics.median(times[3:]), "last": loss,
        "peak_device_mb": torch.cuda.max_memory_allocated() / 2**20,
        "parameters": sum(p.numel() for p in model.parameters()),
    }))  # fmt: skip


main()
