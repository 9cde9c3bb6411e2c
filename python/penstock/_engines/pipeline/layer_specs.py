"""Layers that are not made yet: made on the ranks that hold them, and nowhere else for good.

    layers = [
        TiedLayerSpec("embedding", torch.nn.Embedding, 256, 64),
        LayerSpec(Block, 64),
        TiedLayerSpec("embedding", torch.nn.Embedding, 256, 64, forward_fn=to_logits),
    ]

Source: deepspeed.runtime.pipe.module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock._compatibility import published_as

__all__ = ["LayerSpec", "TiedLayerSpec"]


class LayerSpec:
    """A module's class with the arguments to make it of.

    Raises TypeError for what is no class of torch.nn.Module.
    """

    def __init__(
        self, typename: type[torch.nn.Module], *module_args: Any, **module_kwargs: Any
    ) -> None:
        if not (isinstance(typename, type) and issubclass(typename, torch.nn.Module)):
            raise TypeError(
                f"a LayerSpec is of {typename!r}, must be of a class derived from torch.nn.Module; "
                f"functions and modules that are made stand in the list of layers as they are"
            )
        self.typename = typename
        self.module_args = module_args
        self.module_kwargs = module_kwargs

    def build(self, log: bool = False) -> torch.nn.Module:
        """Makes the module.  log: taken, and not used."""
        del log
        return self.typename(*self.module_args, **self.module_kwargs)

    def __repr__(self) -> str:
        arguments = [repr(each) for each in self.module_args]
        arguments += [f"{key}={value!r}" for key, value in self.module_kwargs.items()]
        return f"{self.typename.__name__}({', '.join(arguments)})"


class TiedLayerSpec(LayerSpec):
    """A layer that is the same module as all others of its key and class, wherever these are.

    key: of the tied layers.
    forward_fn: called with the module and the input in place of the module's forward.
    tied_weight_attr: what layers of the key have in common whose class is another than that of the
        first: names of parameters, dotted ones too.  Layers of one class have all in common.
    """

    def __init__(
        self,
        key: str,
        typename: type[torch.nn.Module],
        *module_args: Any,
        forward_fn: Callable[[Any, Any], Any] | None = None,
        tied_weight_attr: str | Sequence[str] = ("weight",),
        **module_kwargs: Any,
    ) -> None:
        super().__init__(typename, *module_args, **module_kwargs)
        self.key = key
        self.forward_fn = forward_fn
        self.tied_weight_attr = (
            [tied_weight_attr] if isinstance(tied_weight_attr, str) else list(tied_weight_attr)
        )


published_as("penstock.pipe.specs", globals())
