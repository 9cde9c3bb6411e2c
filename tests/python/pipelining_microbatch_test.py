"""penstock.pipelining.microbatch: what a microbatch gets, and what all of them give."""

import itertools

import pytest
import torch
import torch.distributed.pipelining.microbatch as theirs
from torch.nn.attention.flex_attention import create_block_mask

from penstock.pipelining import (
    TensorChunkSpec,
    merge_chunks,
    microbatch,
    split_args_kwargs_into_chunks,
)
from penstock.pipelining.microbatch import _CustomReducer, _Replicate, sum_reducer

X = torch.arange(10.0)


def equal(first, other):
    """Of nested values with tensors in them."""
    if isinstance(first, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(first, other)
    if isinstance(first, (list, tuple)):
        return (
            type(first) is type(other)
            and len(first) == len(other)
            and all(map(equal, first, other))
        )
    if isinstance(first, dict):
        return list(first) == list(other) and all(equal(first[k], other[k]) for k in first)
    return first == other


def test_uneven_chunks_are_one_longer_at_the_front():
    args, kwargs = split_args_kwargs_into_chunks((X,), {"y": X.view(10, 1)}, 4)
    assert [chunk[0].tolist() for chunk in args] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert [chunk["y"].shape for chunk in kwargs] == [(3, 1), (3, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize(("rows", "chunks"), [(10, 4), (8, 4), (7, 7), (5, 1), (256, 3)])
def test_merging_is_the_inverse_of_splitting(rows, chunks):
    value = (torch.rand(rows, 3), {"a": torch.rand(2, rows), "b": "same"})
    spec = (TensorChunkSpec(0), {"a": TensorChunkSpec(1), "b": None})
    args, _ = split_args_kwargs_into_chunks(value, None, chunks, spec)
    assert len(args) == chunks
    assert equal(merge_chunks(args, spec), value)


ARGUMENTS = [
    ((X,), {"y": X, "k": 3}, None, None),
    ((X, {"a": X, "b": [X, "text"]}), {}, None, None),
    ((), {"a": 1}, None, None),
    ((), None, None, None),
    ((X.view(2, 5),), None, (1,), None),
    ((X, X.view(2, 5)), {"a": X, "b": X.view(5, 2)}, (0, 1), {"a": 0, "b": 0}),
]


@pytest.mark.parametrize(
    ("case", "chunks"), list(itertools.product(range(len(ARGUMENTS)), range(1, 6)))
)
def test_chunks_are_those_of_torch(case, chunks):
    args, kwargs, args_dims, kwargs_dims = ARGUMENTS[case]

    def chunks_by(module):
        spec = module.TensorChunkSpec
        return module.split_args_kwargs_into_chunks(
            args,
            kwargs,
            chunks,
            args_dims and spec.from_tuple(args_dims),
            kwargs_dims and spec.from_dict(kwargs_dims),
        )

    assert equal(chunks_by(microbatch), chunks_by(theirs))


def test_one_spec_may_stand_for_all_below_it():
    nested = {"a": X.view(2, 5), "b": (X.view(1, 10), 3)}
    spec = ({"a": TensorChunkSpec(1), "b": _Replicate()},)
    args, _ = split_args_kwargs_into_chunks((nested,), None, 5, spec)
    assert args[0][0]["a"].shape == (2, 1)
    assert args[0][0]["b"] == (nested["b"][0], 3)
    args, _ = split_args_kwargs_into_chunks((X, X), None, 2, TensorChunkSpec(0))
    assert [len(each) for each in args[0]] == [5, 5]


def test_a_spec_may_name_some_of_the_keywords():
    _, kwargs = split_args_kwargs_into_chunks(
        (), {"a": X.view(1, 10), "b": X}, 2, None, {"a": TensorChunkSpec(1)}
    )
    assert (kwargs[0]["a"].shape, kwargs[0]["b"].shape) == ((1, 5), (5,))


def test_a_number_goes_to_every_microbatch():
    scale = torch.tensor(2.0)
    args, _ = split_args_kwargs_into_chunks((X, scale), None, 2)
    assert args[0][1] is args[1][1] is scale


def test_chunks_keep_their_graph():
    x = X.clone().requires_grad_()
    args, _ = split_args_kwargs_into_chunks((x,), None, 4)
    merge_chunks([2 * chunk[0] for chunk in args], None).sum().backward()
    assert torch.equal(x.grad, torch.full((10,), 2.0))


def test_a_mask_over_samples_is_split_with_them():
    lengths = torch.tensor([128, 256, 384, 200])

    def within(sample, head, query, key):
        return key < lengths[sample]

    mask = create_block_mask(within, 4, None, 384, 384, device="cpu")
    args, _ = split_args_kwargs_into_chunks((mask,), None, 3)
    samples = 0
    for (part,) in args:
        size = part.kv_num_blocks.shape[0]
        whole = mask.to_dense()[samples : samples + size]
        assert torch.equal(part.to_dense(), whole)
        key = torch.tensor(300)
        for sample in range(size):
            assert part.mask_mod(sample, 0, 0, key) == (key < lengths[samples + sample])
        samples += size
    assert samples == 4
    of_any = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
    assert split_args_kwargs_into_chunks((of_any,), None, 2)[0][1][0] is of_any


@pytest.mark.parametrize(
    ("message", "call"),
    {
        r"args\[0\] has shape \(2,\), so dimension 0 has 2 for 4 microbatches": lambda: (
            split_args_kwargs_into_chunks((X[:2],), None, 4)
        ),
        r"kwargs\['y'\]\[1\] has shape \(3,\)": lambda: split_args_kwargs_into_chunks(
            (X,), {"y": [X, X[:3]]}, 4
        ),
        r"args\[0\] has shape \(10,\), its chunk spec splits dimension 1": lambda: (
            split_args_kwargs_into_chunks((X,), None, 2, (TensorChunkSpec(1),))
        ),
        "the chunk spec of args is": lambda: split_args_kwargs_into_chunks(
            (X,), None, 2, TensorChunkSpec.from_tuple((0, 0))
        ),
        "kwargs_chunk_spec has 'yy', which is not among the keyword arguments: 'y'": lambda: (
            split_args_kwargs_into_chunks((), {"y": X}, 2, None, {"yy": TensorChunkSpec(0)})
        ),
        "chunks is 0, must be at least 1": lambda: split_args_kwargs_into_chunks((X,), None, 0),
        "there are no chunks": lambda: merge_chunks([], None),
        "chunk 1 is a ": lambda: merge_chunks([X, (X,)], None),
        r"output has shape \(\), so it cannot be joined along dimension 0; a reducer": lambda: (
            merge_chunks([X.sum(), X.sum()], None)
        ),
        r"output\[1\] is 2 in chunk 1, 1 in chunk 0": lambda: merge_chunks([(X, 1), (X, 2)], None),
        r"output has the shapes .* differ beside dimension 0": lambda: merge_chunks(
            [X.view(2, 5), X.view(5, 2)], None
        ),
        r"output is 1, its chunk spec TensorChunkSpec\(0\) joins tensors": lambda: merge_chunks(
            [1, 1], TensorChunkSpec(0)
        ),
    }.items(),
)
def test_what_does_not_fit_is_named(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_spec_is_refused():
    with pytest.raises(TypeError, match="the chunk spec of args holds 0 of type int"):
        split_args_kwargs_into_chunks((X,), None, 2, (0,))
    with pytest.raises(TypeError, match="reducer"):
        split_args_kwargs_into_chunks((X,), None, 2, (sum_reducer,))
    with pytest.raises(TypeError, match="split_dim is '0' of type str"):
        TensorChunkSpec("0")


def test_results_are_merged_as_their_spec_says():
    chunks = [{"logits": X, "loss": torch.tensor(1.5)}, {"logits": X, "loss": torch.tensor(2.0)}]
    merged = merge_chunks(chunks, {"logits": TensorChunkSpec(0), "loss": sum_reducer})
    assert merged["loss"] == 3.5
    assert torch.equal(merged["logits"], torch.cat([X, X]))
    assert merge_chunks([3, 4], _CustomReducer(1, lambda a, b: a * b)) == 12
    assert equal(merge_chunks([X, X], _Replicate()), X)
    assert merge_chunks([None, None], None) is None
    assert equal(merge_chunks([(X,), (X,)], TensorChunkSpec(0)), (torch.cat([X, X]),))


def test_specs_read_and_compare():
    assert repr(TensorChunkSpec(1)) == "penstock.pipelining.microbatch.TensorChunkSpec(1)"
    assert str(TensorChunkSpec(1)) == str(theirs.TensorChunkSpec(1))
    assert TensorChunkSpec.from_tuple((0, 1)) == (TensorChunkSpec(0), TensorChunkSpec(1))
    assert {TensorChunkSpec(0), TensorChunkSpec(0)} == {TensorChunkSpec(0)}
