"""The places of this rank's parameters among those of the whole model.

The engine adds what it sums over parameters in that order, so that no layout changes its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from penstock._engines.pipeline.pipeline_module import PipelineModule

__all__ = ["ModelOrder"]


class ModelOrder:
    """The order of layers; in a layer, that of its parameters.  A tied one stands where it counts.

    Parameters of no layer, like those of a loss_fn, stand behind all layers.
    """

    def __init__(
        self,
        model: PipelineModule,
        parameters: Sequence[torch.nn.Parameter],
        total: Callable[[torch.Tensor], None],
        *,
        is_first_replica: bool,
    ) -> None:
        """Collective.  total: sums a tensor over all ranks, in place.

        parameters: those that are trained here.  is_first_replica: this rank is one of it; what is
        summed over parameters is its alone.
        """
        self._is_first_replica = is_first_replica
        layers, number_of = len(model._layer_specs), {id(p): i for i, p in enumerate(parameters)}
        counts = torch.zeros(layers + model.num_stages, dtype=torch.int64)
        numbers: dict[int, list[int]] = {}
        left = {id(each) for each in model._counted_parameters()} & number_of.keys()
        modules = sorted(model._modules_here().items())
        for group, module in [*modules, (layers + model.stage_id, model)]:
            of_group = [id(each) for each in module.parameters() if id(each) in left]
            left.difference_update(of_group)
            numbers[group] = [number_of[each] for each in of_group]
            counts[group] = len(of_group) if is_first_replica else 0
        total(counts)
        ends = counts.cumsum(0).tolist()
        self._size: int = ends[-1]
        self._place_of: dict[int, int] = {}
        for group, of_group in numbers.items():
            first = ends[group] - len(of_group)
            self._place_of.update(zip(of_group, range(first, ends[group]), strict=True))

    def place(self, values: Sequence[float], chosen: Iterable[int]) -> list[float]:
        """Values by parameter of the model: the value here of a chosen one, and 0.0 for all
        others.

        values: by parameter that is trained here.  chosen: numbers of those.
        """
        placed = [0.0] * self._size
        if self._is_first_replica:
            for number in chosen:
                place = self._place_of.get(number)
                if place is not None:
                    placed[place] = values[number]
        return placed
