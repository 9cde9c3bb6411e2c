"""Training in 16 bits: copies of parameters in 32 bits that are updated, and the scale of the loss.

Knows no ranks: each updates the copies of its own parts, and all see the same norms.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from penstock.configuration import Configuration
from penstock.errors import ConfigError, Error
from penstock.zero._parameters import ZeroParameter, ZeroParamStatus

__all__ = ["LossScale", "MasterCopies", "cast", "type_of"]

_HERE = ZeroParamStatus.AVAILABLE


def type_of(configuration: Configuration) -> torch.dtype | None:
    """What a model is cast to: that of the section bf16 or fp16 which is enabled, or None.

    Raises ConfigError where both are.
    """
    chosen = [
        dtype
        for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16))
        if configuration.flag("enabled", False, section=key)
    ]
    if len(chosen) > 1:
        raise ConfigError(f"{configuration.name}: bf16 and fp16 are both enabled: take one")
    if chosen and configuration.flag("auto_cast", False, section="fp16"):
        raise ConfigError(f"{configuration.name}: fp16.auto_cast: cast the inputs yourself")
    return chosen[0] if chosen else None


def cast(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Casts floating-point parameters and buffers in place.

    Raises ConfigError for parameters of another type that are spread already.
    """
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.dtype == dtype:
            continue
        if isinstance(parameter, ZeroParameter) and parameter.ds_status is not _HERE:
            raise ConfigError(
                f'parameter "{name}" was spread as {parameter.dtype}: make it in '
                f"zero.Init(dtype={dtype})"
            )
        parameter.data = parameter.data.to(dtype)
    for each in module.modules():
        for name, buffer in each._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                each._buffers[name] = buffer.to(dtype)


class MasterCopies:
    """What an optimizer updates for tensors of fewer than 32 bits; others are their own copies.

    Invariant: after an update a tensor is its copy, rounded.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._pairs = [(each, _copy_of(each)) for each in tensors]
        self._by_tensor = {id(each): copy for each, copy in self._pairs}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy."""
        return self._by_tensor[id(tensor)]

    @torch.no_grad()
    def take_gradients(self, factor: float) -> None:
        """Copies get the gradients of their tensors, times `factor`.

        Elements that somebody has changed since the last update are taken over.
        """
        for tensor, copy in self._pairs:
            if copy is not tensor:
                changed = copy.to(tensor.dtype) != tensor
                copy.copy_(torch.where(changed, tensor.float(), copy))
                copy.grad = None if tensor.grad is None else tensor.grad.float()
        gradients = [copy.grad for _, copy in self._pairs if copy.grad is not None]
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)

    @torch.no_grad()
    def give_values(self) -> None:
        """Tensors become their copies, rounded."""
        for tensor, copy in self._pairs:
            if copy is not tensor:
                tensor.copy_(copy)
                copy.grad = None


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    is_short = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.detach().float() if is_short else tensor


class LossScale:
    """What a loss is multiplied by, so that small gradients are not lost in 16 bits.

    Fixed, or moving: halved by an overflow, after the first `hysteresis` - 1 of them, and doubled
    after `window` steps without one, which also makes good for earlier overflows; with
    `consecutive`, every step without one does.
    """

    def __init__(self, configuration: Configuration) -> None:
        def integer(key: str, default: int, least: int) -> int:
            return configuration.integer(key, default, section="fp16", least=least)

        fixed = configuration.section("fp16").get("loss_scale", 0)
        if isinstance(fixed, bool) or not isinstance(fixed, int | float) or not fixed >= 0:
            raise ConfigError(
                f"{configuration.name}: fp16.loss_scale is {fixed!r}, must be a number, at least 0"
            )
        enabled = configuration.flag("enabled", False, section="fp16")
        self._moves = enabled and fixed == 0
        self._hysteresis = integer("hysteresis", 2, 1)
        self._window = integer("loss_scale_window", 1000, 1)
        self._least = integer("min_loss_scale", 1, 1)
        self._consecutive = configuration.flag("consecutive_hysteresis", False, section="fp16")
        self.value = float(fixed or 1) if enabled else 1.0
        if self._moves:
            self.value = 2.0 ** integer("initial_scale_power", 16, 0)
        self._left = self._hysteresis
        self._since = 0  # Steps without an overflow.

    def update(self, overflow: bool) -> None:
        """After each step.

        Raises Error for an overflow at the smallest scale.
        """
        if not self._moves:
            return
        if overflow:
            self._lower()
            return
        self._since += 1
        if self._consecutive:
            self._left = self._hysteresis
        if self._since % self._window == 0:
            self._left = self._hysteresis
            self.value *= 2

    def _lower(self) -> None:
        self._since = 0
        if self._left > 1:
            self._left -= 1
            return
        if self.value <= self._least:
            raise Error(
                f"the gradient overflows at the smallest loss scale, {self.value:g}",
                ("lower the learning rate, or train in bf16",),
            )
        self.value = max(self.value / 2, float(self._least))
