"""GatheredParameters: parameters made whole, on all ranks together, for a block of code.

Knows no engine: parameters know their homes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock._calls import CALLS, ForAllRanks, calling
from penstock._compatibility import published_as
from penstock._engines.parameters.external_parameters import register_external_parameter
from penstock._engines.parameters.parameter_home import ParameterHome, home_of
from penstock._engines.parameters.written_parameters import settle
from penstock._engines.parameters.zero_parameter import ZeroParameter, place_of

__all__ = ["GatheredParameters", "unwrap_model_for_generation"]


_NAME = "GatheredParameters()"
CALLS["penstock.zero", _NAME] = ForAllRanks(_NAME, "penstock.zero", "under ZeRO 3")


class GatheredParameters:
    """A context in which parameters are whole, and may be read like any others.

        with penstock.zero.GatheredParameters(layer.weight, modifier_rank=0):
            if rank == 0:
                torch.nn.init.normal_(layer.weight)

    params: a parameter, or several; those that ZeRO 3 knows nothing of are passed over.
    modifier_rank: the rank whose changes count, and reach all; None: there are none to be made.
    fwd_module: gets them as external parameters.
    enabled: False: does nothing.

    All ranks enter and leave it.  It may stand in another, and in a forward.  Leaving it raises
    penstock.Error for parameters that were changed though there is no modifier_rank.
    """

    def __init__(
        self,
        params: torch.nn.Parameter | Iterable[torch.nn.Parameter],
        modifier_rank: int | None = None,
        fwd_module: torch.nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        known = {id(each): each for each in given if isinstance(each, ZeroParameter)}
        chosen = sorted(known.values(), key=lambda each: each.ds_id) if enabled else []
        self._spread: dict[ParameterHome, list[int]] = {}
        self._whole: list[ZeroParameter] = []
        for parameter in chosen:
            place = place_of(parameter)
            if place.number is None:
                self._whole.append(parameter)
            else:
                self._spread.setdefault(home_of(parameter), []).append(place.number)
        self._modifier = modifier_rank
        self._check_modifier()
        if fwd_module is not None:
            for parameter in chosen:
                register_external_parameter(fwd_module, parameter)

    def __enter__(self) -> None:
        with calling(_NAME, of_all=self._is_of_all):
            self._enter()

    def _enter(self) -> None:
        settle()
        entered: list[ParameterHome] = []
        try:
            for home, numbers in self._spread.items():
                home.hold(numbers, self._modifier)
                entered.append(home)
        except BaseException:
            for home in entered:
                home.release(self._spread[home])
            raise

    def __exit__(self, *error: Any) -> None:
        with calling(f"the end of {_NAME}", of_all=self._is_of_all):
            self._leave()

    def _leave(self) -> None:
        for home, numbers in self._spread.items():
            home.release(numbers, self._modifier)
        if self._modifier is None:
            return
        for parameter in self._whole:
            home_of(parameter).replicas.broadcast(parameter.detach(), self._modifier)

    def _homes(self) -> list[ParameterHome]:
        return [*self._spread, *(home_of(each) for each in self._whole)]

    @property
    def _is_of_all(self) -> bool:
        """Whether all ranks of a communicator make it; a pipeline's stage has some."""
        replicas = [home.replicas for home in self._homes()]
        return all(each.size == each.communicator.world_size for each in replicas)

    def _check_modifier(self) -> None:
        for home in self._homes():
            if self._modifier is None or 0 <= self._modifier < home.ranks:
                continue
            raise ValueError(
                f"modifier_rank is {self._modifier}, must be one of the {home.ranks} ranks from 0"
            )


@contextmanager
def unwrap_model_for_generation(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Collective: all parameters are whole inside, so that forwards bring nothing.

    model: an engine, or a module; is what `with` gives.
    """
    with GatheredParameters(model.parameters()):
        yield model


published_as("penstock.zero.partition_parameters", globals())
