"""Low-rank adapters beside the linears of a model of transformers: by hand, and by PEFT."""

from __future__ import annotations

from pathlib import Path

import torch
from folder_runs import tensors

PREFIX = "base_model.model."


class Adapted(torch.nn.Module):
    """A linear of transformers with an adapter beside it."""

    def __init__(self, linear, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = linear, scale
        self.a, self.b = torch.nn.Parameter(a.clone()), torch.nn.Parameter(b.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + (x @ self.a.T) @ self.b.T * self.scale


def adapted_by_hand(model, start: Path, scale: float) -> dict[str, torch.nn.Parameter]:
    """The trained parameters, by PEFT's names; `start` is a folder of adapters."""
    first = tensors(start)
    model.requires_grad_(False)
    trained = {}
    for name in sorted({each[len(PREFIX) :].rsplit(".lora_", 1)[0] for each in first}):
        parent, _, last = name.rpartition(".")
        one, other = (f"{PREFIX}{name}.lora_{which}.weight" for which in "AB")
        adapted = Adapted(model.get_submodule(name), first[one], first[other], scale)
        setattr(model.get_submodule(parent), last, adapted)
        trained |= {one: adapted.a, other: adapted.b}
    return trained


def adapted_by_peft(model, start: Path):
    """The model and its trained parameters.  Throws ImportError where PEFT is missing."""
    import peft

    model = peft.PeftModel.from_pretrained(model, start, is_trainable=True)
    trained = {
        name_in_file(name): each for name, each in model.named_parameters() if each.requires_grad
    }
    return model, trained


def name_in_file(parameter: str) -> str:
    """The name of a parameter of PEFT's model in the file that it saves."""
    name = parameter.replace(".default", "").replace(".modules_to_save", "")
    return name.removesuffix(".weight") if "lora_magnitude_vector" in name else name
