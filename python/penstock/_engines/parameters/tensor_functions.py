"""What torch's functions do with the values of a tensor that they are given: by their names.

Parameters whose values are away ask (away_parameter.py).  Knows no parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "copies",
    "gives_itself",
    "gives_view",
    "is_lazy",
    "may_write",
    "name_of",
    "needs_values",
    "result_of_itself",
    "shows_memory",
]

# Tensors' attributes that are views of values; all others are facts about them.
_VALUES = {"data", "T", "H", "mT", "mH", "real", "imag", "__cuda_array_interface__"}
_FACTS = {
    *("size", "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg"),
    *("is_inference", "is_same_size", "get_device", "dim_order", "result_type", "__len__"),
    *("new_tensor", "new_empty", "new_zeros", "new_ones", "new_full"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("requires_grad_", "retain_grad", "register_hook", "register_post_accumulate_grad_hook"),
    *("grad", "backward"),  # They are of these tensors; what they need of others, the graph has.
}
_CASTS = {
    **{"float": torch.float32, "double": torch.float64},
    **{"half": torch.float16, "bfloat16": torch.bfloat16},
}
# Answers to what Module._apply() does with a tensor that it has cast.
_RESULTS = {"__set__": None, "_has_compatible_shallow_copy_type": True}
# Functions that give views, which may be written to.
_VIEWS = {
    *("__getitem__", "detach", "view", "view_as", "narrow", "select", "diagonal", "movedim"),
    *("chunk", "split", "unbind", "unflatten", "as_strided", "unfold", "swapaxes", "__iter__"),
    *("t", "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "alias"),
}
# The ones of these that do without memory; others check how much there is.
_LAZY = {"detach", "alias"}
# Functions that give out memory itself, which may be gone when somebody looks.
_MEMORY = {
    *("data_ptr", "storage", "untyped_storage", "_typed_storage", "share_memory_"),
    *("__dlpack__", "__dlpack_device__", "to_dlpack", "__cuda_array_interface__", "set_"),
}
# The ones whose result would share that memory.
_COPIES = {"numpy", "__array__"}


def needs_values(func: Callable[..., Any]) -> bool:
    """Whether it does anything with values, and is not about facts alone."""
    name = func.__name__
    if name in ("__get__", "__set__", "__delete__"):
        return _attribute_of(func) in _VALUES
    return name not in _FACTS


def gives_itself(func: Callable[..., Any], tensor: torch.Tensor, rest: Any, kwargs: Any) -> bool:
    """Whether it gives `tensor` as it is, as Module.float() and Module.to("cpu") do of each.

    tensor: its first argument, on the CPU.
    rest: the others.
    """
    name = func.__name__
    if name in _RESULTS:
        return rest[0] is tensor
    if name == "cpu" or name in _CASTS:
        return not rest and not kwargs and tensor.dtype == _CASTS.get(name, tensor.dtype)
    flags = [each for each in rest if isinstance(each, bool)]  # non_blocking and copy.
    if name != "to" or kwargs.get("copy") or len(flags) > 1:
        return False
    with torch._C.DisableTorchFunctionSubclass():
        device, dtype, _, memory_format = torch._C._nn._parse_to(*rest, **kwargs)
    is_here = device is None or device.type == "cpu"
    return is_here and dtype in (None, tensor.dtype) and memory_format is None


def result_of_itself(func: Callable[..., Any], tensor: torch.Tensor) -> Any:
    """What a function returns that gives_itself()."""
    return _RESULTS.get(func.__name__, tensor)


def gives_view(func: Callable[..., Any]) -> bool:
    """Whether all it does is to give a view."""
    name = func.__name__
    return name in _VIEWS or (name == "__get__" and not shows_memory(func))


def is_lazy(func: Callable[..., Any]) -> bool:
    """Whether it gives a view without a look at memory."""
    name = func.__name__
    return name in _LAZY or (name == "__get__" and _attribute_of(func) == "data")


def shows_memory(func: Callable[..., Any]) -> bool:
    """Whether it gives out memory, and nothing can tell when that is used."""
    return (_attribute_of(func) if func.__name__ == "__get__" else func.__name__) in _MEMORY


def copies(func: Callable[..., Any]) -> bool:
    """Whether it has to be given a copy, because its result lasts."""
    return func.__name__ in _COPIES


def may_write(func: Callable[..., Any], arguments: dict[str, Any]) -> bool:
    """Whether it changes a tensor in place, as all of torch.nn.init do."""
    name = func.__name__
    if name.startswith("__"):
        return name in ("__setitem__", "__set__") or (name.startswith("__i") and name in _IN_PLACE)
    return name.endswith("_") or arguments.get("out") is not None


_IN_PLACE = {
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
} | {"__ilshift__", "__irshift__"}


def name_of(func: Callable[..., Any]) -> str:
    """The name as one writes it."""
    if func.__name__ in ("__get__", "__set__"):
        return f".{_attribute_of(func)}"
    return f"{func.__name__}()"


def _attribute_of(func: Callable[..., Any]) -> str:
    name: str = func.__self__.__name__  # type: ignore[attr-defined]
    return name
