"""safe_set_* took the first elements of a tensor that had too many, and said nothing."""

from __future__ import annotations

import pytest
import torch

import penstock
from penstock.utils import safe_get_full_fp32_param, safe_set_full_fp32_param
from penstock.utils.tensor_fragment import safe_set_full_grad, safe_set_local_fp32_param

SGD = {"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}


def test_it_is_refused_and_nothing_is_set():
    model = torch.nn.Linear(2, 3)
    engine, *_ = penstock.initialize(model=model, config=SGD)
    engine.backward(engine(torch.ones(1, 2)).sum())
    before = model.weight.detach().clone()
    of = r"weight: 8 elements are given, and "
    with pytest.raises(ValueError, match=of + "this rank has 6 of it"):
        safe_set_local_fp32_param(model.weight, torch.zeros(8))
    with pytest.raises(ValueError, match=of + "the parameter has 6 of it"):
        safe_set_full_fp32_param(model.weight, torch.zeros(4, 2))
    with pytest.raises(ValueError, match=of + "the parameter has 6 of it"):
        safe_set_full_grad(model.weight, torch.zeros(4, 2))
    assert torch.equal(safe_get_full_fp32_param(model.weight), before)
    engine.destroy()
