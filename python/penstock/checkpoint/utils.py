"""DeepSpeed's place for what scripts do with a state before they save it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from penstock._compatibility import refuse_in

__all__ = ["clone_tensors_for_torch_save"]

refuse_in(globals())


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """A copy of nested mappings, lists and tuples, whose tensors share memory with nothing.

    device: where the copies are.  A tensor that is a part of a larger one takes only its own bytes
    in a file then.  What is none of these is not copied.
    """
    if isinstance(item, torch.Tensor):
        return item.detach().clone().to(device)
    if isinstance(item, Mapping):
        copies = {key: clone_tensors_for_torch_save(each, device) for key, each in item.items()}
        return type(item)(copies)  # type: ignore[call-arg]
    if isinstance(item, list | tuple):
        return type(item)(clone_tensors_for_torch_save(each, device) for each in item)
    return item
