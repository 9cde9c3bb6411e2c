"""A rank's stages over its replicas: what is updated, and, of ZeRO 3, what comes and goes.

Knows no schedule, no optimizer and no losses.  What replicas do together, and when, is C++
(penstock/runtime/parameters/rank_parameters.h).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from penstock import _torch
from penstock._engines.parameters.parameter_claims import Claim
from penstock._engines.parameters.parameter_home import ParameterHome, spread_of
from penstock._engines.parameters.parameter_slots import ParameterSlots
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.parameters.replicated_model import (
    facts_of,
    own_values,
    refuse_compiled,
    refuse_meta,
)
from penstock._engines.parameters.written_parameters import settle
from penstock._engines.parameters.zero_parameter import Place, ZeroParameter, adopt, release
from penstock._engines.parameters.zero_settings import ZeroSettings
from penstock._engines.ranks.process_groups import telling_others
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._engines.pipeline.pipeline_module import PipelineModule
    from penstock._engines.pipeline.pipeline_stage import Stage
    from penstock._runtime import (
        Communicator,
        ModelPlaces,
        RankParameters,
        Update,
        UpdateRequest,
    )

__all__ = ["ReplicatedStages", "check_ties", "places_of"]


class ReplicatedStages:
    """Collective: stages whose values become those of the first replica.

    replicas: the ranks that have the same stages.
    parameters: those that are trainable, each once; `parts` has, for each, what this rank updates:
    itself, a slice, or nothing; `first` the number of the first element of that.
    names: of each parameter, by its id.
    """

    def __init__(
        self,
        model: PipelineModule,
        stages: Mapping[int, Stage],
        replicas: Replicas,
        settings: ZeroSettings,
    ) -> None:
        self._replicas = replicas
        refuse_meta(list(model.named_parameters()))
        settle()
        replicas.agree(facts_of(model))
        if settings.come_and_go(replicas.size):
            refuse_compiled(model)
        with torch.no_grad():
            for buffer in model.buffers():
                replicas.broadcast(buffer, 0)
        is_cut = settings.are_cut(replicas.size)
        sets = _sets_of(model, stages)
        self.parameters = [each for of_set in sets for each in of_set if each.requires_grad]
        self.names: dict[int, list[str]] = {}
        for name, each in model.named_parameters(remove_duplicate=False):
            self.names.setdefault(id(each), []).append(name)
        first = {key: names[0] for key, names in self.names.items()}
        self._claim = Claim(list(model.parameters()), first, moves=is_cut)
        self._slots = ParameterSlots(model, first)
        self.held = self._make(sets, settings)
        self._homes: list[ParameterHome] = []
        if settings.stage == 3:
            self._put_under_zero(model, sets)
        self.parts: list[list[torch.Tensor]] = [[] for _ in self.parameters]
        self.first: list[int] = [0] * len(self.parameters)
        for number, begin, part in self.held.parts():
            self.parts[number].append(part)
            self.first[number] = begin

    def take_over(self) -> None:
        """What parameters were set to since the last backward; raises Error as before_update()."""
        self._look_at_parameters()
        self.held.take_over()

    def before_update(self) -> None:
        """Takes over what a script has set.

        Raises Error, by name, for what cannot be trained on.
        """
        self.take_over()

    def _look_at_parameters(self) -> None:
        self._claim.check()
        self._slots.check()

    @contextmanager
    def running(self, *, trains: bool = False) -> Iterator[None]:
        """A context in which operators bring what they read.  Collective if the program trains."""
        if trains:
            with telling_others(self._replicas.communicator):
                self._look_at_parameters()
        with ExitStack() as ends:
            for home in self._homes:
                home.open()
                ends.callback(home.close)
            yield

    def squared_norms(self) -> list[float]:
        """Collective: of the gradient of each of `parameters`; the same on all replicas."""
        return self.held.squared_norms()

    def update(self, request: UpdateRequest) -> Update:
        """An Update of `parts`."""
        return self.held.update(request)

    def after_update(self) -> None:
        """Collective: `parts` have new values, and their gradients are of no use any more."""
        self.held.gather()
        self.held.drop_gradients()

    def drop_gradients(self) -> None:
        """Drops the gradients of parameters and parts."""
        self.held.drop_gradients()

    def _make(self, sets: list[list[torch.nn.Parameter]], settings: ZeroSettings) -> RankParameters:
        made: type[RankParameters] = _torch.load().RankParameters
        named = [[(self.names[id(each)][0], each) for each in of_set] for of_set in sets]
        *alone, shared = named
        parameters = [each for of_set in sets for each in of_set]
        held = made(
            [*((of_stage, True) for of_stage in alone), (shared, False)],
            self._replicas.group,
            settings.options_for(parameters),
            spread_of(parameters),
        )
        for each in parameters:
            if isinstance(each, ZeroParameter):
                release(each)
        return held

    def _put_under_zero(self, model: PipelineModule, sets: list[list[torch.nn.Parameter]]) -> None:
        places = iter(self.held.spread_place)
        for number, of_set in enumerate(sets):
            home = ParameterHome(self._replicas)
            self._homes.append(home)
            spread: list[ZeroParameter] = []
            for parameter in of_set:
                place = next(places)
                adopted = adopt(parameter, Place(home, self.names[id(parameter)][0], place))
                if place is not None:
                    spread.append(adopted)
            module = self.held.spread(number)
            if module is not None:
                home.settle(module, spread)
        for each in model.modules():
            each.register_state_dict_post_hook(own_values)  # type: ignore[no-untyped-call]


def places_of(
    model: PipelineModule,
    parameters: Sequence[torch.nn.Parameter],
    communicator: Communicator,
    group: int,
    *,
    counts: bool,
) -> ModelPlaces:
    """Collective over the group: where `parameters` stand in the model.

    counts: what is summed over parameters is this rank's to add: it is of the first replica.
    """
    numbers = {id(each): number for number, each in enumerate(parameters)}
    here = [
        (index, [numbers[id(each)] for each in of_layer if id(each) in numbers])
        for index, of_layer in model._parameters_by_layer()
    ]
    made: type[ModelPlaces] = _torch.load().ModelPlaces
    layers = len(model._layer_specs) + model.num_stages
    return made(layers, here if counts else [], communicator, group)


def check_ties(
    model: PipelineModule, stages: Iterable[int], updated: set[int], communicator: Communicator
) -> None:
    """Collective: raises ConfigError where some ranks update a tied parameter, and others do not.

    updated: ids.
    """
    here = {
        name: id(each) in updated
        for stage in stages
        for name, each in model._tied_parameters(stage).items()
    }
    first: dict[str, tuple[int, bool]] = {}
    for rank, text in enumerate(communicator.exchange("tied parameters", json.dumps(here))):
        for name, is_updated in json.loads(text).items():
            other, as_well = first.setdefault(name, (rank, is_updated))
            if is_updated != as_well:
                one, none = (rank, other) if is_updated else (other, rank)
                raise ConfigError(
                    f'the tied parameter "{name}" is updated by the optimizer of rank {one}, and '
                    f"not by that of rank {none}: give it to all, or to none"
                )


def _sets_of(model: PipelineModule, stages: Mapping[int, Stage]) -> list[list[torch.nn.Parameter]]:
    """The parameters of each stage that are its alone; then all others, each once."""
    uses = Counter(id(each) for stage in stages.values() for each in stage.parameters())
    for stage in stages:
        uses.update(id(each) for each in model._tied_parameters(stage).values())
    sets = [
        [each for each in stages[number].parameters() if uses[id(each)] == 1]
        for number in sorted(stages)
    ]
    alone = {id(each) for of_stage in sets for each in of_stage}
    others = [each for each in model.parameters() if id(each) not in alone]
    return [*sets, others]
