"""A warning said that the backward of fully_shard's and tensor-parallel stages cannot be split.

Python's autograd functions in such graphs only hand gradients on; the operators around them are
split all the same.  A function that computes a weight's gradient is still told of.
"""

import pytest
import torch

from penstock._engines.stages.backward_graph import why_not_split


class HandsOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *values):
        return values if len(values) > 1 else values[0]

    @staticmethod
    def backward(ctx, *gradients):
        return gradients if len(gradients) > 1 else gradients[0]


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


def test_what_hands_gradients_on_splits():
    x = torch.randn(2, 3, requires_grad=True)
    linear = torch.nn.Linear(3, 3)
    first, second = HandsOn.apply(linear(x), x * 2)
    assert why_not_split((HandsOn.apply(linear(first)), second)) is None


@pytest.mark.parametrize("as_it_is", [True, False])
def test_what_computes_a_weight_s_gradient_does_not(as_it_is):
    x = torch.randn(2, 3, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(3, 3))
    reason = why_not_split((Product.apply(x, weight if as_it_is else weight.t()).tanh(),))
    assert reason is not None and reason.what == "ProductBackward"
