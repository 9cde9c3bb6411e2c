"""Layers of a published run, from its shape alone, as a file of `penstock memory --layers`.

The programs that ran are not penstock: attention may be products and a softmax in memory, tokens
may be whole between layers.  So their kernels, exchanges and bytes are written down here, by
formula.  Needs the standard library only.  Units: bytes, operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SHORT = 2  # Bytes of an element of bf16 and fp16.


@dataclass(frozen=True)
class Shape:
    """A decoder on `tensor` ranks, and one of its microbatches.

    is_plain: scores are in memory; else attention is one kernel.
    cuts_tokens: ranks that share layers have a part of the tokens between them.
    halves_products: selective recomputation makes all again but attention and every second product.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    tensor: int
    microbatch: int
    is_plain: bool
    is_gated: bool
    has_ties: bool
    cuts_tokens: bool
    halves_products: bool = False
    context: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of a rank of those that share a sample's."""
        return self.microbatch * self.sequence // self.context

    @property
    def between(self) -> int:
        """Tokens that a rank has between layers."""
        return self.tokens // self.tensor if self.cuts_tokens else self.tokens


class Kernels:
    """Kernels of a pass, as the file has them."""

    def __init__(self) -> None:
        self.all: list[list[Any]] = []

    def product(self, rows: int, inner: int, columns: int, times: int = 1) -> None:
        self.all.append(["short_product", 2 * rows * inner * columns, times])

    def attention(self, kind: str, operations: int) -> None:
        self.all.append([kind, operations, 1])

    def other(self, elements: int, bytes_of_each: int, times: int = 1) -> None:
        self.all.append(["other", elements * bytes_of_each, times])


def scores(shape: Shape) -> int:
    return shape.microbatch * shape.heads * shape.sequence**2 // shape.tensor // shape.context


def attention_forward(shape: Shape, kernels: Kernels) -> None:
    """The part between the projections, which Megatron's selective recomputation makes again."""
    if shape.is_plain:
        # Heads are so narrow that the products of scores wait for memory.
        kernels.other(scores(shape), SHORT, 2)
        kernels.other(scores(shape), 2 * SHORT)  # Scale, mask and softmax, fused.
        kernels.other(scores(shape), 2 * SHORT + 1)  # Dropout and its mask.
    else:
        half = 2 * shape.tokens * shape.sequence * shape.hidden // shape.tensor
        kernels.attention("short_attention", half)


def attention_backward(shape: Shape, kernels: Kernels) -> None:
    if shape.is_plain:
        kernels.other(scores(shape), SHORT, 4)
        kernels.other(scores(shape), 2 * SHORT + 1)
        kernels.other(scores(shape), 3 * SHORT)
    else:
        half = 2 * shape.tokens * shape.sequence * shape.hidden // shape.tensor
        kernels.attention("short_attention_backward", half * 5 // 2)


def linears(shape: Shape) -> list[tuple[int, int]]:
    """Inner and outer widths of a rank's products."""
    hidden, t = shape.hidden, shape.tensor
    kv = 2 * hidden * shape.kv_heads // shape.heads
    up = [(hidden, shape.ffn // t)] * (2 if shape.is_gated else 1)
    return [(hidden, (hidden + kv) // t), (hidden // t, hidden), *up, (shape.ffn // t, hidden)]


def parameter(name: str, elements: int, tied: bool = False) -> dict[str, Any]:
    return {
        "name": name, "type": "bfloat16", "element_bytes": SHORT, "elements": elements,
        "trainable": True, "tied": tied, "copies": 1, "sum_element_bytes": 4,
    }  # fmt: skip


def layer(parameters: list[dict[str, Any]], passes: dict[str, Kernels], **numbers: Any) -> dict:
    """All keys of a layer in the file; those that are not given are 0."""
    result: dict[str, Any] = dict.fromkeys(
        ("buffers", "output", "input_gradient", "kept", "half_kept", "forward_peak",
         "plain_forward_peak", "input_peak", "forward_sent", "forward_exchanges", "backward_sent",
         "backward_exchanges", "expert_parameters"), 0)  # fmt: skip
    flags = ("keeps_input", "keeps_output", "half_keeps_input", "half_keeps_gradient")
    result |= dict.fromkeys(flags, False)
    result |= {"backward_peak": [0, 0], "weight_peak": [0, 0], "parameters": parameters,
               "exchanges": []}  # fmt: skip
    for name in ("forward", "backward", "input", "weight"):
        result[name + "_kernels"] = passes[name].all if name in passes else []
    # Exchanges hide behind nothing: the program is not told kernel by kernel.
    result |= {name + "_pass": [] for name in ("forward", "backward", "input")}
    return result | numbers


def block(shape: Shape, is_selective: bool) -> dict:
    s = shape
    n, between, h, t = s.tokens, s.between, s.hidden, s.tensor
    forward, inputs, weights = Kernels(), Kernels(), Kernels()
    ffn = s.ffn // t
    for inner, outer in linears(s):
        forward.product(n, inner, outer)
        inputs.product(n, inner, outer)
        weights.product(n, inner, outer)
    attention_forward(s, forward)
    if is_selective and s.is_plain:
        attention_forward(s, inputs)
    if is_selective and s.halves_products:
        again = Kernels()
        for inner, outer in linears(s):
            again.product(n, inner, outer)
        inputs.all += again.all[::2]
        inputs.other(between * h, 2 * SHORT, 2)
        inputs.other(n * ffn, 3 * SHORT)
    attention_backward(s, inputs)
    for _ in range(2):  # Norms, and what is added to the residual stream with dropout.
        forward.other(between * h, 2 * SHORT)
        forward.other(between * h, 3 * SHORT + (0 if s.is_gated else 1))
        inputs.other(between * h, 3 * SHORT)
        inputs.other(between * h, 2 * SHORT + (0 if s.is_gated else 1))
    kv = 2 * h * s.kv_heads // s.heads
    if s.is_gated:
        forward.other(n * (h + kv // 2) // t, 4 * SHORT)  # Rotary positions.
        forward.other(n * ffn, 3 * SHORT)
        inputs.other(n * (h + kv // 2) // t, 4 * SHORT)
        inputs.other(n * ffn, 5 * SHORT)
    else:
        forward.other(n * (h + kv) // t, 2 * SHORT)
        forward.other(n * ffn, 2 * SHORT)
        inputs.other(n * (h + kv) // t, 2 * SHORT)
        inputs.other(n * ffn, 3 * SHORT)
    elements = sum(inner * outer for inner, outer in linears(s))
    weights.other(elements, 2 * 4)  # Gradients are added in float.
    # Activations: Korthikanti et al. 2022, section 4, less the input, which is counted apart.
    if s.is_gated and is_selective and s.halves_products:
        cut = n * (h + h + s.ffn) // t * SHORT  # Attention's output, and every second product's.
        whole = between * h * SHORT
    elif s.is_gated:
        cut = n * (2 * h + kv + h + 3 * s.ffn) // t * SHORT
        whole = between * h * 2 * SHORT
    else:
        cut = n * h // t * (24 if s.ffn == 4 * h else 8 + 4 * s.ffn // h)
        whole = between * h * 8
    core = scores(s) * 5 if s.is_plain and not is_selective else 0
    kept = cut + whole + core
    output = between * h * SHORT
    sent = 0 if t == 1 else 2 * n * h * SHORT * (t - 1) // t * 2  # Two sums, or as much.
    peak = max(n * ffn * 3 * SHORT, scores(s) * 5 if s.is_plain else 0)
    # Keys and values of a rank's own tokens go round: forward, and with their gradients backward.
    own = n * kv // t * SHORT
    ring = [["context", "ring", 1, own, 1, 2 * own, 1]] if s.context > 1 else []
    peak += 3 * own if s.context > 1 else 0
    backward = Kernels()
    backward.all = inputs.all + weights.all
    return layer(
        [parameter("weights", elements), parameter("vectors", 4 * h + (h + kv + s.ffn) // t)],
        {"forward": forward, "backward": backward, "input": inputs, "weight": weights},
        output=output, input_gradient=output, kept=kept, keeps_input=True,
        half_kept=kept, half_keeps_input=True, half_keeps_gradient=True,
        forward_peak=kept + output + peak // 2, plain_forward_peak=output + peak,
        input_peak=output + peak, backward_peak=[output + peak, output + peak],
        weight_peak=[0, 0], forward_sent=sent, backward_sent=sent,
        forward_exchanges=2 if t > 1 else 0, backward_exchanges=2 if t > 1 else 0,
        exchanges=ring,
    )  # fmt: skip


def embedding(shape: Shape) -> dict:
    s = shape
    rows = s.vocabulary // s.tensor
    forward, weights = Kernels(), Kernels()
    forward.other(s.between * s.hidden, 2 * SHORT)
    weights.other(rows * s.hidden, 4)
    positions = [] if s.is_gated else [parameter("positions", s.sequence * s.hidden)]
    output = s.between * s.hidden * SHORT
    return layer(
        [parameter("embedding", rows * s.hidden, s.has_ties), *positions],
        {"forward": forward, "backward": weights, "weight": weights},
        output=output, keeps_input=True, half_keeps_input=True, half_keeps_gradient=True,
        forward_peak=output, plain_forward_peak=output,
        kept=0 if s.is_gated else s.between * s.hidden,
    )  # fmt: skip


def head(shape: Shape) -> dict:
    s = shape
    rows = s.vocabulary // s.tensor
    forward, inputs, weights = Kernels(), Kernels(), Kernels()
    forward.other(s.between * s.hidden, 2 * SHORT)
    for kernels in (forward, inputs, weights):
        kernels.product(s.tokens, s.hidden, rows)
    weights.other(rows * s.hidden, 2 * 4)
    backward = Kernels()
    backward.all = inputs.all + weights.all
    sent = 0 if s.tensor == 1 else s.tokens * s.hidden * SHORT * (s.tensor - 1) // s.tensor
    logits = s.tokens * rows * SHORT
    return layer(
        [parameter("embedding" if s.has_ties else "head", rows * s.hidden, s.has_ties),
         parameter("norm", 2 * s.hidden)],
        {"forward": forward, "backward": backward, "input": inputs, "weight": weights},
        output=logits, input_gradient=s.between * s.hidden * SHORT,
        kept=s.between * s.hidden * SHORT, keeps_input=True, half_kept=0, half_keeps_input=True,
        half_keeps_gradient=True, forward_peak=logits + s.between * s.hidden * SHORT,
        plain_forward_peak=logits, input_peak=s.tokens * s.hidden * SHORT,
        backward_peak=[s.tokens * s.hidden * SHORT] * 2, forward_sent=sent, backward_sent=2 * sent,
        forward_exchanges=1 if sent else 0, backward_exchanges=1 if sent else 0,
    )  # fmt: skip


def loss(shape: Shape) -> dict:
    """Logits in float, and their softmax."""
    logits = shape.tokens * shape.vocabulary // shape.tensor
    forward, inputs = Kernels(), Kernels()
    for each in (SHORT + 4, 4, 2 * 4, 2 * 4, 2 * 4):
        forward.other(logits, each)
    inputs.other(logits, 2 * 4)
    inputs.other(logits, 4 + SHORT)
    return layer(
        [], {"forward": forward, "backward": inputs, "input": inputs},
        output=4, input_gradient=logits * SHORT, kept=4 * logits, half_kept=0,
        forward_peak=8 * logits, plain_forward_peak=8 * logits, input_peak=4 * logits,
        backward_peak=[4 * logits, 4 * logits], keeps_input=False,
    )  # fmt: skip


def made_for(row: dict[str, Any]) -> str:
    """The file's line that says which model it is of."""
    return (
        f"model.type=gpt layers={row['layers']} hidden={row['hidden']} heads={row['heads']} "
        f"vocabulary={row['vocabulary']} tie_embeddings=false dropout=none "
        f"sequence_length={row['sequence']} parameters=bf16 gradients=fp32"
    )


def layers_file(row: dict[str, Any], program: dict[str, Any]) -> dict[str, Any]:
    shape = Shape(
        **{key: row[key] for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary",
                                     "sequence", "tensor", "microbatch")},
        is_plain=program["attention"] == "plain", is_gated=program.get("gated", False),
        has_ties=program.get("ties", False), cuts_tokens=row["tokens_cut"],
        halves_products=program.get("selective") == "every second product",
        context=row.get("context", 1),
    )  # fmt: skip
    model = [{"name": "embedding", "type": "Embedding", "parameters": 1}]
    model += [{"name": f"block.{i}", "type": "Block", "parameters": 1} for i in range(shape.layers)]
    model.append({"name": "head", "type": "Head", "parameters": 1})
    sizes = []
    for is_selective in (False, True):
        each = block(shape, is_selective)
        sizes.append({
            "microbatch": shape.microbatch, "sharers": shape.tensor, "context": shape.context,
            "experts": 1, "selective": is_selective,
            "loss": loss(shape), "again": [],
            "layers": [embedding(shape), *[each] * shape.layers, head(shape)],
        })  # fmt: skip
    return {
        "version": 5, "made_for": made_for(row), "sample_bytes": 16 * shape.sequence,
        "fused": True, "model": model, "sizes": sizes,
    }  # fmt: skip
