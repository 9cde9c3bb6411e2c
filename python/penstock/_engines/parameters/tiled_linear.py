"""A linear layer in tiles, of which ZeRO 3 has few whole at one time.  Knows no ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from penstock._compatibility import published_as

__all__ = ["TiledLinear"]


class TiledLinear(torch.nn.Module):
    """torch.nn.Linear as in_splits x out_splits smaller ones, whose outputs are added and joined.

    input_is_already_split: forward() takes a list with each tile's share of the inputs.
    combine_out_splits: False: forward() returns a list of shares of the outputs.
    linear_cls: what makes a tile, with `kwargs` besides.  init_linear: has the values to begin
    with.

    linears[i][j]: from the j-th share of the inputs to the i-th of the outputs; those of the last
    share of the inputs have the bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Callable[..., torch.nn.Module] = torch.nn.Linear,
        init_linear: torch.nn.Linear | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.in_parts = _cuts("in_splits", in_features, in_splits)
        self.out_parts = _cuts("out_splits", out_features, out_splits)
        self.use_bias = bias
        self.input_is_already_split = input_is_already_split
        self.combine_out_splits = combine_out_splits
        rows = [
            torch.nn.ModuleList(
                linear_cls(b - a, d - c, bias=bias and b == in_features, **kwargs)
                for a, b in pairwise(self.in_parts)
            )
            for c, d in pairwise(self.out_parts)
        ]
        self.linears = torch.nn.ModuleList(rows)
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, inputs: Any) -> Any:
        """The layer's outputs."""
        shares = inputs if self.input_is_already_split else self._split(inputs)
        outputs: list[Any] = []
        for row in self._rows():
            terms = [tile(share) for tile, share in zip(row, shares, strict=True)]
            outputs.append(sum(terms[1:], terms[0]))
        return torch.cat(outputs, dim=-1) if self.combine_out_splits else outputs

    @torch.no_grad()
    def copy_params_from(self, other: torch.nn.Linear) -> None:
        """The values of a whole layer, into tiles that are whole here."""
        for row, (c, d) in zip(self._rows(), pairwise(self.out_parts), strict=True):
            for tile, (a, b) in zip(row, pairwise(self.in_parts), strict=True):
                tile.weight.copy_(other.weight[c:d, a:b])
                if tile.bias is not None:
                    tile.bias.copy_(other.bias[c:d])

    def _split(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(inputs, [b - a for a, b in pairwise(self.in_parts)], dim=-1)

    def _rows(self) -> list[Any]:
        return list(self.linears)


def _cuts(name: str, features: int, splits: int) -> list[int]:
    """Cuts as evenly as can be, the larger ones first."""
    if not 1 <= splits <= features:
        raise RuntimeError(f"{name} is {splits}, must be in [1, {features}]")
    share, more = divmod(features, splits)
    return [i * share + min(i, more) for i in range(splits + 1)]


published_as("penstock.zero", globals())
