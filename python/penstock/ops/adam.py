"""Adam by DeepSpeed's names; the update is torch's."""

from __future__ import annotations

from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import refuse_in

__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]

refuse_in(globals())


class _Named(type):
    """The type of classes that an optimizer is an instance of, too, if a configuration has named
    it.
    """

    def __instancecheck__(cls, value: object) -> bool:
        kinds: list[type] = [cls, *cls.__subclasses__()]
        names = {each.__name__ for each in kinds}
        return super().__instancecheck__(value) or (
            isinstance(value, torch.optim.Optimizer) and vars(value).get("_stands_for") in names
        )


class FusedAdam(torch.optim.Adam, metaclass=_Named):
    """AdamW, or, with adam_w_mode False, Adam, whose weight decay is added to the gradient.

    The "Adam" and "AdamW" of a configuration are instances of it, unless torch_adam says no.
    bias_correction: must be True.  set_grad_none: taken, and not used.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        del set_grad_none
        if not bias_correction:
            raise ValueError("bias_correction is False: Adam corrects its means for their start")
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=adam_w_mode
        )


class DeepSpeedCPUAdam(FusedAdam):
    """The same, with the arguments that DeepSpeed's has.  fp32_optimizer_states: must be True."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if not fp32_optimizer_states:
            raise ValueError("fp32_optimizer_states is False: an optimizer's state is in float32")
        super().__init__(
            model_params, lr, bias_correction, betas, eps, adamw_mode, weight_decay, amsgrad
        )
