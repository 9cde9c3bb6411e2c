"""Spreads the parameters of a module that has just been made over the ranks that share it.

zero.Init does so after every constructor, a PipelineModule that is made in it after every layer.
Knows no engine: penstock.initialize() takes over what was spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock import _torch
from penstock._engines.parameters.parameter_home import ParameterHome
from penstock._engines.parameters.precision import cast_tensors
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.parameters.zero_parameter import Place, adopt, is_zero
from penstock._engines.parameters.zero_settings import ZeroSettings

if TYPE_CHECKING:
    from penstock._runtime import ZeroInitParameters

__all__ = ["Spreading"]


@dataclass(frozen=True)
class Spreading:
    """How modules are spread.

    replicas: the ranks that have them.  settings: of which the size of buckets counts.
    dtype: what floating-point parameters and buffers are cast to; None: they stay what they are.
    """

    replicas: Replicas
    settings: ZeroSettings
    dtype: torch.dtype | None

    def spread(self, module: torch.nn.Module) -> None:
        """Collective: its own and its submodules' parameters, unless they have been spread.

        Values become those of the first replica.  What is on the meta device has none, and stays.
        """
        for each in module.modules():
            own = {
                name: parameter
                for name, parameter in each._parameters.items()
                if parameter is not None and not is_zero(parameter) and not parameter.is_meta
            }
            if self.dtype is not None:
                cast_tensors([*own.values(), *each._buffers.values()], self.dtype)
            if own:
                self._spread(type(each).__name__, own)

    def _spread(self, kind: str, own: dict[str, torch.nn.Parameter]) -> None:
        home = ParameterHome(self.replicas)
        parameters = {each: f"{kind}.{name}" for name, each in own.items()}  # Each once.
        for each in parameters:
            values = each.detach().contiguous()
            self.replicas.broadcast(values, 0)
            each.data = values
        spread = [
            adopt(each, Place(home, name, number if self.replicas.size > 1 else None))
            for number, (each, name) in enumerate(parameters.items())
        ]
        if self.replicas.size == 1:
            return
        made: type[ZeroInitParameters] = _torch.load().ZeroInitParameters
        width = max(each.element_size() for each in spread)
        with self.replicas.telling_others():
            module = made(
                [(name, each) for each, name in parameters.items()],
                self.settings.bucket * width,
                self.replicas.group,
            )
        home.settle(module, spread)
