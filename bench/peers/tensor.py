"""torch's DTensor on a Llama block that two ranks share: the peer of bench/tensor.cpp.

A rank has half of the tokens between the parts of the block, and half of the heads and of the
feed-forward's features in them: SequenceParallel norms, ColwiseParallel and RowwiseParallel
linears, over Gloo.  Before anything is timed, output and gradient are compared with those of the
plain block.
"""

import contextlib
import copy
import io

import torch
import torch.distributed as dist
from ranks import report, run_ranks, time_steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention, silu

SEQUENCE = 256
TOLERANCE = 1e-5


def linear(inputs: int, outputs: int) -> torch.nn.Linear:
    made = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(made.weight, std=0.02)
    return made


def angles_of(head_dim: int):
    """The cosines and sines of all positions, each [sequence, head_dim]."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(SEQUENCE), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def turned(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_dim = width // heads
        self.q_proj = linear(width, width)
        self.k_proj = linear(width, width)
        self.v_proj = linear(width, width)
        self.o_proj = linear(width, width)
        self.angles = angles_of(self.head_dim)

    def by_heads(self, x):
        return x.view(x.size(0), x.size(1), -1, self.head_dim).transpose(1, 2)

    def forward(self, x):
        queries = turned(self.by_heads(self.q_proj(x)), *self.angles)
        keys = turned(self.by_heads(self.k_proj(x)), *self.angles)
        values = self.by_heads(self.v_proj(x))
        mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(torch.nn.Module):
    def __init__(self, width: int, intermediate: int):
        super().__init__()
        self.gate_proj = linear(width, intermediate)
        self.up_proj = linear(width, intermediate)
        self.down_proj = linear(intermediate, width)

    def forward(self, x):
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.input_layernorm = torch.nn.RMSNorm(width, eps=1e-5)
        self.self_attn = Attention(width, heads=max(4, width // 64))
        self.post_attention_layernorm = torch.nn.RMSNorm(width, eps=1e-5)
        # 8/3 of the width, to the nearest multiple of 32.
        self.mlp = FeedForward(width, intermediate=(width * 8 // 3 + 16) // 32 * 32)

    def forward(self, x):
        attended = x + self.self_attn(self.input_layernorm(x))
        return attended + self.mlp(self.post_attention_layernorm(attended))


def shared(block: Block) -> torch.nn.Module:
    """The block with each rank's half of its weights."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {
        "input_layernorm": SequenceParallel(),
        "self_attn": gather,
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": gather,
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(block, init_device_mesh("cpu", (2,)), plan)


def part_of(x, rank: int):
    """A rank's tokens, as values of their own that take a gradient."""
    return x.chunk(2, dim=1)[rank].detach().clone().requires_grad_()


def check_close(what: str, part, whole) -> None:
    difference = (part - whole).abs().max().item()
    if not difference <= TOLERANCE:
        raise RuntimeError(f"{what} of two ranks differs by {difference} from that of one")


def checked(block: Block, x, gradient, rank: int) -> torch.nn.Module:
    """What two ranks share of the block; it has given what the whole block gives."""
    module = shared(copy.deepcopy(block))
    whole = x.clone().requires_grad_()
    expected = block(whole)
    expected.backward(gradient)
    part = part_of(x, rank)
    output = module(part)
    output.backward(part_of(gradient, rank))
    check_close("the output", output, part_of(expected, rank))
    check_close("the gradient", part.grad, part_of(whole.grad, rank))
    module.zero_grad()
    return module


def body(rank, args, init_method):
    with contextlib.redirect_stdout(io.StringIO()):
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
        torch.manual_seed(0)  # The same on both ranks.
        block = Block(args.width)
        x, gradient = torch.randn(2, 1, SEQUENCE, args.width)
        module = checked(block, x, gradient, rank)
        part, gradient_of_part = part_of(x, rank), part_of(gradient, rank).detach()

        def step():
            module(part).backward(gradient_of_part)
            module.zero_grad()
            part.grad = None

        times = time_steps(args.steps, step, lambda: None)
    report("torch", args, times)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(body)
