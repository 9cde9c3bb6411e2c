"""Splits the arguments of a step into those of its microbatches, and merges their results.

    >>> x = torch.arange(10.0)
    >>> args, kwargs = split_args_kwargs_into_chunks((x,), {"scale": 2}, 4)
    >>> [len(chunk[0]) for chunk in args]
    [3, 3, 2, 2]
    >>> merge_chunks([chunk[0] for chunk in args], TensorChunkSpec(0)).equal(x)
    True

A spec says how: one for each value, in the same nesting, or one for everything below it; None, and
where there is no spec: tensors along dimension 0, all else to every microbatch.  The first
microbatches are one longer where the size is no multiple of their number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from penstock import _arguments
from penstock._compatibility import published_as

__all__ = [
    "TensorChunkSpec",
    "_CustomReducer",
    "_Replicate",
    "_split_block_mask",
    "_split_tensor",
    "merge_chunks",
    "split_args_kwargs_into_chunks",
    "sum_reducer",
]


class TensorChunkSpec:
    """Microbatches have their own share of a tensor, along a dimension."""

    def __init__(self, split_dim: int) -> None:
        self.split_dim = _arguments.integer("split_dim", split_dim)

    def __repr__(self) -> str:
        return f"{type(self).__module__}.{self}"

    def __str__(self) -> str:
        return f"TensorChunkSpec({self.split_dim})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorChunkSpec) and self.split_dim == other.split_dim

    def __hash__(self) -> int:
        return hash(self.split_dim)

    @staticmethod
    def from_tuple(chunk_dims: tuple[int, ...]) -> tuple[TensorChunkSpec, ...]:
        """A spec for each positional argument: (0, 1) splits the second along dimension 1."""
        return tuple(map(TensorChunkSpec, chunk_dims))

    @staticmethod
    def from_dict(chunk_dims: dict[str, int]) -> dict[str, TensorChunkSpec]:
        """A spec for each keyword argument."""
        return {name: TensorChunkSpec(dim) for name, dim in chunk_dims.items()}


class _Replicate:
    """Every microbatch has the whole value; merged, all must be equal."""

    def __repr__(self) -> str:
        return "_Replicate()"


class _CustomReducer:
    """Merges with `reduce_fn(so_far, value)`, beginning with `init_value`."""

    def __init__(self, init_value: Any, reduce_fn: Callable[[Any, Any], Any]) -> None:
        self.init_value = init_value
        self.reduce_fn = reduce_fn


sum_reducer = _CustomReducer(torch.tensor(0.0), lambda a, b: a + b)
"""Adds up what microbatches give: for an output that is their loss."""

Spec = TensorChunkSpec | _Replicate | _CustomReducer


def split_args_kwargs_into_chunks(
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    chunks: int,
    args_chunk_spec: Any = None,
    kwargs_chunk_spec: Mapping[str, Any] | None = None,
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """The positional and the keyword arguments of each of `chunks` microbatches.

    args_chunk_spec: a tuple, by position; kwargs_chunk_spec: a dict, by name, of some or all.
    Raises ValueError for a tensor that is shorter than there are microbatches, for a spec of
    another nesting and for names that are not among kwargs.
    """
    count = _arguments.integer("chunks", chunks)
    if count < 1:
        raise ValueError(f"chunks is {count}, must be at least 1")
    named = kwargs or {}
    unknown = set(kwargs_chunk_spec or {}) - set(named)
    if unknown:
        raise ValueError(
            f"kwargs_chunk_spec has {_quoted(unknown)}, which is not among the keyword arguments: "
            f"{_quoted(named) or 'there are none'}"
        )
    names_spec = {name: (kwargs_chunk_spec or {}).get(name) for name in named}
    split_args = split_value(tuple(args), args_chunk_spec, count, "args")
    split_kwargs = split_value(dict(named), names_spec, count, "kwargs")
    return split_args, split_kwargs


def split_value(value: Any, spec: Any, chunks: int, name: str) -> list[Any]:
    """The value of each of `chunks` microbatches; `name` is what errors call it."""
    leaves, tree = pytree.tree_flatten_with_path(value)
    shares = [
        _split_leaf(leaf, leaf_spec, chunks, name + pytree.keystr(path))
        for (path, leaf), leaf_spec in zip(leaves, _specs_of(spec, tree, name), strict=True)
    ]
    return [pytree.tree_unflatten([each[i] for each in shares], tree) for i in range(chunks)]


def merge_chunks(chunks: list[Any], chunk_spec: Any) -> Any:
    """What the whole batch gives, of what each microbatch gives: the inverse of splitting.

    chunk_spec: None: tensors are joined along dimension 0, all else must be equal.
    Raises ValueError for no chunks, for chunks of different nesting, and for values that cannot be
    joined.
    """
    if not chunks:
        raise ValueError("merge_chunks: there are no chunks")
    leaves, tree = pytree.tree_flatten_with_path(chunks[0])
    columns = [[leaf] for _, leaf in leaves]
    for number, chunk in enumerate(chunks[1:], 1):
        others, other_tree = pytree.tree_flatten(chunk)
        if other_tree != tree:
            raise ValueError(f"chunk {number} is a {other_tree}, chunk 0 is a {tree}")
        for column, leaf in zip(columns, others, strict=True):
            column.append(leaf)
    specs = _specs_of(chunk_spec, tree, "output")
    merged = [
        _merge_leaf(column, spec, "output" + pytree.keystr(path))
        for column, (path, _), spec in zip(columns, leaves, specs, strict=True)
    ]
    return pytree.tree_unflatten(merged, tree)


def _quoted(names: Any) -> str:
    return ", ".join(map(repr, sorted(names)))


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, Spec)


def _specs_of(spec: Any, tree: pytree.TreeSpec, name: str) -> list[Spec | None]:
    """The spec of each leaf of a value."""
    specs = pytree._broadcast_to_and_flatten(spec, tree, is_leaf=_is_spec)
    if specs is None:
        raise ValueError(f"the chunk spec of {name} is {spec}, but {name} is a {tree}")
    for each in specs:
        if not _is_spec(each):
            raise TypeError(
                f"the chunk spec of {name} holds {each!r} of type {type(each).__name__}, must hold "
                f"TensorChunkSpec or None"
            )
    return specs


def _dim_of(spec: Spec | None) -> int:
    return spec.split_dim if isinstance(spec, TensorChunkSpec) else 0


def _split_leaf(value: Any, spec: Spec | None, chunks: int, name: str) -> Sequence[Any]:
    if isinstance(spec, _CustomReducer):
        raise TypeError(f"the chunk spec of {name} is a reducer, which merges and does not split")
    splits = not isinstance(spec, _Replicate)
    if splits and _is_block_mask(value):
        return _split_block_mask(value, chunks, name)
    if splits and isinstance(value, torch.Tensor) and (spec is not None or value.dim() > 0):
        return _split_tensor(value, _dim_of(spec), chunks, name)
    return [value] * chunks


def _split_tensor(value: torch.Tensor, dim: int, chunks: int, name: str) -> Sequence[torch.Tensor]:
    shape = tuple(value.shape)
    if not -value.dim() <= dim < value.dim():
        raise ValueError(f"{name} has shape {shape}, its chunk spec splits dimension {dim}")
    if value.shape[dim] < chunks:
        raise ValueError(
            f"{name} has shape {shape}, so dimension {dim} has {value.shape[dim]} for {chunks} "
            f"microbatches; each needs at least one"
        )
    return torch.tensor_split(value, chunks, dim)


def _is_block_mask(value: Any) -> bool:
    """Whether it is a mask of flex_attention, which nobody has who has not imported that."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    return module is not None and isinstance(value, module.BlockMask)


def _split_block_mask(mask: Any, chunks: int, name: str) -> Sequence[Any]:
    """A mask over a batch as one for each microbatch; one for any batch goes to all."""
    batch = mask.kv_num_blocks.shape[0]
    if batch == 1:
        return [mask] * chunks
    if batch < chunks:
        raise ValueError(f"{name} is a mask of {batch} samples for {chunks} microbatches")
    parts = (
        mask.kv_num_blocks,
        mask.kv_indices,
        mask.full_kv_num_blocks,
        mask.full_kv_indices,
    )
    split = [[None] * chunks if p is None else torch.tensor_split(p, chunks) for p in parts]
    return [
        type(mask).from_kv_blocks(
            *(part[i] for part in split),
            BLOCK_SIZE=mask.BLOCK_SIZE,
            mask_mod=_of_later_samples(mask.mask_mod, first),
            seq_lengths=mask.seq_lengths,
        )
        for i, first in enumerate(_firsts(split[0]))
    ]


def _firsts(parts: Sequence[Any]) -> Iterator[int]:
    """The numbers at which the parts begin."""
    first = 0
    for part in parts:
        yield first
        first += len(part)


def _of_later_samples(mask_mod: Callable[..., Any], first: int) -> Callable[..., Any]:
    def shifted(sample: Any, head: Any, query: Any, key: Any) -> Any:
        return mask_mod(sample + first, head, query, key)

    return shifted


def _merge_leaf(values: list[Any], spec: Spec | None, name: str) -> Any:
    if isinstance(spec, _CustomReducer):
        merged = spec.init_value
        for value in values:
            merged = spec.reduce_fn(merged, value)
        return merged
    joins = isinstance(spec, TensorChunkSpec) or spec is None
    if joins and all(isinstance(value, torch.Tensor) for value in values):
        return _join(values, _dim_of(spec), name)
    if isinstance(spec, TensorChunkSpec):
        raise ValueError(f"{name} is {values[0]!r}, its chunk spec {spec} joins tensors")
    for number, value in enumerate(values):
        if not _equal(values[0], value):
            raise ValueError(
                f"{name} is {value!r} in chunk {number}, {values[0]!r} in chunk 0: what is no "
                f"tensor, or replicated, must be equal in all"
            )
    return values[0]


def _join(values: list[torch.Tensor], dim: int, name: str) -> torch.Tensor:
    shapes = [tuple(value.shape) for value in values]
    if any(not -len(shape) <= dim < len(shape) for shape in shapes):
        raise ValueError(
            f"{name} has shape {shapes[0]}, so it cannot be joined along dimension {dim}; a "
            f"reducer in the chunk spec (sum_reducer) adds up what microbatches give"
        )
    if len({(*s[: dim % len(s)], None, *s[dim % len(s) + 1 :]) for s in shapes}) > 1:
        raise ValueError(f"{name} has the shapes {shapes}, which differ beside dimension {dim}")
    return torch.cat(values, dim)


def _equal(first: Any, other: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(first, other)
    return bool(first == other)


published_as("penstock.pipelining.microbatch", globals())
