"""Finds the parameters that stages have in common, said alike on every rank.

Layers of one key and class are one module; of a key's other classes, those parameters that
tied_weight_attr names are the module's.  A module that stands in the list of layers more than once
is one module as well.  Knows no connections: penstock._runtime sums the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from penstock._engines.pipeline.layer_specs import TiedLayerSpec
from penstock.errors import ConfigError

__all__ = ["TiedLayers"]


class TiedLayers:
    """The ties of a list of layers.

    stage_of: by layer, its stage; rank_of: by stage, its rank.
    """

    def __init__(self, layers: Sequence[Any], stage_of: Sequence[int], rank_of: Sequence[int]):
        self._layers = layers
        self._stage_of = stage_of
        self._rank_of = rank_of
        self._specs: dict[str, dict[int, TiedLayerSpec]] = {}
        for index, layer in enumerate(layers):
            if isinstance(layer, TiedLayerSpec):
                self._specs.setdefault(layer.key, {})[index] = layer

    def first(self, spec: TiedLayerSpec) -> int:
        """The index of the first layer of its key."""
        return min(self._specs[spec.key])

    def is_of_first_class(self, spec: TiedLayerSpec) -> bool:
        """Whether it is the first layer's module, and not just has parameters of it."""
        return spec.typename is self._specs[spec.key][self.first(spec)].typename

    def of_stage(self, stage: int, modules: Mapping[int, torch.nn.Module]) -> dict[str, Any]:
        """The parameters that the stage has in common with stages of other ranks, by name.

        modules: by layer, those that this rank holds.
        """
        tied = {}
        for name, (parameter, stages) in self._shared(modules).items():
            if stage not in stages or not parameter.requires_grad:
                continue
            if len({self._rank_of[each] for each in stages}) > 1:
                tied[name] = parameter
        return tied

    def counted_elsewhere(self, rank: int, modules: Mapping[int, torch.nn.Module]) -> set[int]:
        """The ids of parameters that are the first's of another rank, which counts them."""
        return {
            id(parameter)
            for parameter, stages in self._shared(modules).values()
            if self._rank_of[min(stages)] != rank
        }

    def stages(self) -> set[int]:
        """The stages that hold a tied layer."""
        by_key = {self._stage_of[index] for specs in self._specs.values() for index in specs}
        return by_key.union(*(stages for _, stages in self._of_made_modules().values()))

    def _shared(
        self, modules: Mapping[int, torch.nn.Module]
    ) -> dict[str, tuple[torch.nn.Parameter, set[int]]]:
        """Parameters that are here, and all stages that have them, by name."""
        shared = {}
        for key, specs in self._specs.items():
            alike = {i for i, spec in specs.items() if self.is_of_first_class(spec)}
            for index in specs.keys() & modules.keys():
                names = (
                    dict(modules[index].named_parameters())
                    if index in alike
                    else self.named(specs[index], modules[index])
                )
                for name, parameter in names.items():
                    has = {
                        i
                        for i, spec in specs.items()
                        if i in alike or name in spec.tied_weight_attr
                    }
                    shared[f"{key}.{name}"] = (parameter, {self._stage_of[i] for i in has})
        return shared | self._of_made_modules()

    @staticmethod
    def named(spec: TiedLayerSpec, module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        """What tied_weight_attr names; a ConfigError for what the module has not."""
        parameters = dict(module.named_parameters())
        for name in spec.tied_weight_attr:
            if name not in parameters:
                raise ConfigError(
                    f'{spec!r}, tied as "{spec.key}", has no parameter "{name}", which '
                    f"tied_weight_attr names; it has {', '.join(parameters) or 'none'}"
                )
        return {name: parameters[name] for name in spec.tied_weight_attr}

    def _of_made_modules(self) -> dict[str, tuple[torch.nn.Parameter, set[int]]]:
        """Parameters that several stages have, of modules that are on every rank."""
        found: dict[int, tuple[str, torch.nn.Parameter, set[int]]] = {}
        for index, layer in enumerate(self._layers):
            for name, parameter in _parameters(layer):
                place = found.setdefault(id(parameter), (f"{index}.{name}", parameter, set()))
                place[2].add(self._stage_of[index])
        return {
            name: (parameter, stages)
            for name, parameter, stages in found.values()
            if len(stages) > 1
        }


def _parameters(layer: Any) -> Iterable[tuple[str, torch.nn.Parameter]]:
    return layer.named_parameters() if isinstance(layer, torch.nn.Module) else ()
