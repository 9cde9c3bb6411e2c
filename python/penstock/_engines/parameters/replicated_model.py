"""A model's parameters over its replicas: what is updated, and, of stage 3, what comes and goes.

Knows no optimizer and no losses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch

from penstock import _torch
from penstock._engines.parameters.backwards import Backwards
from penstock._engines.parameters.external_parameters import Forwards
from penstock._engines.parameters.parameter_claims import Claim
from penstock._engines.parameters.parameter_home import ParameterHome, spread_of
from penstock._engines.parameters.parameter_slots import ParameterSlots
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.parameters.written_parameters import settle
from penstock._engines.parameters.zero_parameter import (
    Place,
    ZeroParameter,
    ZeroParamStatus,
    adopt,
    is_away,
    place_of,
    release,
)
from penstock._engines.parameters.zero_settings import ZeroSettings
from penstock.errors import ConfigError, Error

if TYPE_CHECKING:
    from penstock._runtime import GradientScale, ModuleReplica, Update, UpdateRequest

__all__ = ["ReplicatedModel", "facts_of", "own_values", "refuse_compiled", "refuse_meta"]


class ReplicatedModel:
    """Collective: a model whose values become those of rank 0.

    microbatches: of a step, which losses of a script's own backwards are divided by.
    divisor: of sums over the replicas.
    scale: that of losses; None: they have none.

    parameters: those that are trainable, each once; `parts` has, for each, what this rank updates:
    itself, its slices, or nothing.
    names: by a parameter's id; replica: what the replicas have in common of them.
    replicas: who they are.  is_cut: they update slices.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        replicas: Replicas,
        settings: ZeroSettings,
        microbatches: int,
        divisor: float,
        scale: GradientScale | None,
    ) -> None:
        self.module = module
        self.replicas = replicas
        self.is_cut = settings.are_cut(replicas.size)
        self._pieces: dict[int, list[tuple[int, int, int]]] | None = None
        named = list(module.named_parameters())
        refuse_meta(named)
        settle()
        self.parameters = [each for _, each in named if each.requires_grad]
        self.names = {id(each): _full_name(module, name) for name, each in named}
        if settings.come_and_go(replicas.size):
            refuse_compiled(module)
        with replicas.telling_others():
            self._claim = Claim([each for _, each in named], self.names, moves=self.is_cut)
        self.replica = self._make(named, settings, scale, divisor)
        with torch.no_grad():
            for buffer in module.buffers():
                replicas.broadcast(buffer, 0)
        self._home = ParameterHome(replicas)
        self._home.belongs_to(self)
        self._forwards: Forwards | None = None
        if settings.stage == 3:
            self._put_under_zero(named)
            self._forwards = Forwards(module)
            self._part: ExitStack | None = None
        self.parts: list[list[torch.Tensor]] = [[] for _ in self.parameters]
        for number, _, part in self.replica.parts():
            self.parts[number].append(part)
        self._running = _Running(self.replica, replicas, self._home)
        self._claim.let_go = self.replica.ignore_backwards
        self._slots = ParameterSlots(module, self.names)
        self._backwards = Backwards(self.replica, self._running, microbatches, scale)

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's."""
        if self._backwards.is_inside:
            return self.module(*inputs, **kwargs)  # Computed again.
        self._backwards.check_over()
        self.let_go()
        if torch.is_grad_enabled():
            self._look_at_parameters()
        with self._running():
            self.replica.begin_forward(torch.is_grad_enabled())
            if self._forwards is not None:
                self._forwards.begin()
            try:
                output = self.module(*inputs, **kwargs)
            finally:
                if self._forwards is not None:
                    self._forwards.end()
            self.replica.end_forward()
        self._backwards.watch(output)
        return output

    def begin_part(self) -> None:
        """The script calls the module, or a part of it: a forward like the engine's begins."""
        assert self._forwards is not None
        self._backwards.check_over()
        if torch.is_grad_enabled():
            self._look_at_parameters()
        with ExitStack() as stack:
            stack.enter_context(self._running())
            self.replica.begin_forward(torch.is_grad_enabled())
            self._part = stack.pop_all()
        self._forwards.begin(self.end_part)

    def end_part(self, output: object, error: BaseException | None) -> None:
        """It is over.  What is behind an error is its cause."""
        assert self._forwards is not None and self._part is not None
        self._forwards.end()
        part, self._part = self._part, None
        if error is not None:
            try:
                part.__exit__(type(error), error, error.__traceback__)
            except Error as cause:
                if error.__cause__ is None:
                    error.__cause__ = cause  # Python shows it above the error.
            return
        with part:
            self.replica.end_forward()
        self.watch(output)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """A context in which single operators of the script bring what they read."""
        self._backwards.check_over()
        with self._running(shows=False):
            self.replica.begin_outside()
            yield
            self.replica.end_forward()

    def watch(self, output: object) -> None:
        """A backward of the script that begins there finds parameters."""
        self._backwards.watch(output)

    def resize(self, microbatches: int) -> None:
        """Steps have so many from now on."""
        self._backwards.resize(microbatches)

    def backward(self, loss: torch.Tensor, *, ends: bool, retain_graph: bool, divisor: int) -> None:
        """Adds the gradients of `loss`, divided; sums them, where it ends an accumulation."""
        self._backwards.check_over()
        self.let_go()
        with self._backwards.of_engine(), self._running():
            self.replica.backward(loss, 1 / divisor, ends, retain_graph)

    def take_over(self) -> None:
        """What parameters were set to since the last backward; raises Error as before_update()."""
        self._look_at_parameters()
        self.replica.take_over()

    def before_update(self) -> None:
        """Takes over what a script has set.

        Raises Error, by name, for what cannot be trained on.
        """
        self.take_over()
        if self.is_cut:
            self._check_gradients()

    def _look_at_parameters(self) -> None:
        self._claim.check()
        self._slots.check()

    def _check_gradients(self) -> None:
        for each in self.parameters:
            if each.grad is not None:
                raise Error(
                    f'parameter "{self.names[id(each)]}" was given a gradient after its sum over '
                    f"the replicas was made, of which each has a part",
                    ("penstock.utils.safe_set_full_grad() sets that sum, on all ranks",),
                )

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What a backward of the caller's own begins with."""
        return self._backwards.scaled(loss)

    def sum_gradients(self) -> None:
        """Collective: ends an accumulation that no backward() has ended."""
        self._backwards.check_over()
        if self.replica.has_sums:
            return
        with self.replicas.telling_others():
            self.replica.sum_gradients()

    def pieces_of(self, number: int) -> list[tuple[int, int, int]]:
        """Collective at its first call: who updates what of a parameter: rank, first, elements."""
        if self._pieces is None:
            rank = self.replicas.rank
            mine = [(number, first, part.numel()) for number, first, part in self.replica.parts()]
            given: dict[int, list[tuple[int, int, int]]] = {rank: mine}
            if self.is_cut:
                texts = self.replicas.communicator.exchange("pieces", json.dumps(mine))
                given = {rank: json.loads(text) for rank, text in enumerate(texts)}
            self._pieces = {}
            for rank, pieces in given.items():
                for of, first, count in pieces:
                    self._pieces.setdefault(of, []).append((rank, first, count))
        return self._pieces.get(number, [])

    def set_whole(self, number: int, values: torch.Tensor) -> None:
        """Sets the values, flat, of a parameter that is whole here."""
        parameter = self.parameters[number]
        here = ZeroParamStatus.AVAILABLE
        if not isinstance(parameter, ZeroParameter) or parameter.ds_status is here:
            with torch.no_grad():
                parameter.copy_(values.view(parameter.shape))

    def where_not_finite(self, squares: list[float], numbers: Sequence[int]) -> str:
        """Names, for an error, the first of those parameters whose gradient in a step is not
        finite; empty: all are.

        squares: by parameter, of its gradient's norm.
        """
        if isfinite(sum(squares)):
            return ""
        first = next((i for i in numbers if not isfinite(squares[i])), None)
        if first is None:
            return ""
        return f', first in parameter "{self.names[id(self.parameters[first])]}"'

    def squared_norms(self, words: Sequence[float]) -> tuple[list[float], list[float]]:
        """Collective: of each parameter's gradient, over all replicas; and the sums of `words`."""
        with self.replicas.telling_others():
            return self.replica.squared_norms(words)

    def update(self, request: UpdateRequest) -> Update:
        """An Update of `parts`."""
        return self.replica.update(request)

    def after_update(self) -> None:
        """Collective: `parts` have new values, and their gradients are of no use any more."""
        with self.replicas.telling_others():
            self.replica.gather()
        self.replica.drop_gradients()

    def drop_gradients(self) -> None:
        """Drops the gradients of parameters and parts."""
        self._backwards.forget()
        self.replica.drop_gradients()

    def let_go(self) -> None:
        """What the last forward has returned of parameters may go."""
        if self._forwards is not None:
            self._forwards.let_go()

    @property
    def has_gradients(self) -> bool:
        """Whether a step has begun."""
        return self.replica.has_sums or any(each.grad is not None for each in self.parameters)

    @property
    def paging(self) -> dict[str, int]:
        """Numbers of the last forward and backward: uses, faults, prefetches, drops, peak_bytes."""
        return self.replica.paging

    def _make(
        self,
        named: list[tuple[str, torch.nn.Parameter]],
        settings: ZeroSettings,
        scale: GradientScale | None,
        divisor: float,
    ) -> ModuleReplica:
        made: type[ModuleReplica] = _torch.load().ModuleReplica
        with self.replicas.telling_others():
            replica = made(
                [(self.names[id(each)], each) for _, each in named],
                self.replicas.group,
                settings.options_for([each for _, each in named]),
                scale,
                divisor,
                spread_of(each for _, each in named),
            )
        for _, each in named:
            if isinstance(each, ZeroParameter):
                release(each)
        return replica

    def _put_under_zero(self, named: list[tuple[str, torch.nn.Parameter]]) -> None:
        spread: list[ZeroParameter] = []
        for (name, parameter), number in zip(named, self.replica.spread_place, strict=True):
            adopted = adopt(parameter, Place(self._home, name, number))
            if number is not None:
                spread.append(adopted)
        module = self.replica.spread()
        if module is not None:
            self._home.settle(module, spread)
            for each in self.module.modules():
                each.register_state_dict_post_hook(own_values)  # type: ignore[no-untyped-call]


class _Running:
    """Calls of it make a context in which operators bring what they read.

    What went wrong in one is raised at its end.
    """

    def __init__(self, replica: ModuleReplica, replicas: Replicas, home: ParameterHome) -> None:
        self._replica = replica
        self._replicas = replicas
        self._home = home

    @contextmanager
    def __call__(self, *, shows: bool = True) -> Iterator[None]:
        """shows: parameters are like any others; else operators alone find them."""
        with self._replicas.telling_others():
            if shows:
                self._home.open()
            try:
                yield
            except BaseException as error:
                self._give_up(error)
                raise
            finally:
                if shows:
                    self._home.close()

    def _give_up(self, error: BaseException) -> None:
        """Raises what an operator could not say, if that is behind `error`."""
        try:
            self._replica.abandon()
        except Error as cause:
            raise cause from error


def _full_name(module: torch.nn.Module, name: str) -> str:
    return name if "." in name else f"{type(module).__name__}.{name}"


def own_values(
    module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any
) -> None:
    """A state_dict that was taken of gathered parameters stays what it is when they go."""
    for name, parameter in module._parameters.items():
        key = prefix + name
        if not isinstance(parameter, ZeroParameter) or is_away(parameter):
            continue
        if place_of(parameter).number is None:
            continue  # It stays.
        if key in state_dict and state_dict[key] is not parameter:
            state_dict[key] = state_dict[key].clone()


def facts_of(module: torch.nn.Module) -> list[tuple[str, str]]:
    """What replicas of it must have in common, by parameter."""
    return [
        (
            f"parameter {name}",
            f"{tuple(each.shape)} {each.dtype}{'' if each.requires_grad else ', frozen'}",
        )
        for name, each in module.named_parameters()
    ]


def refuse_meta(named: list[tuple[str, torch.nn.Parameter]]) -> None:
    """Raises ConfigError for a parameter that has no values yet."""
    for name, each in named:
        if each.is_meta:
            raise ConfigError(
                f'parameter "{name}" is on the meta device, and has no values: call '
                f'to_empty(device="cpu") and initialise or load it before penstock.initialize()'
            )


def refuse_compiled(module: torch.nn.Module) -> None:
    """Raises ConfigError for a compiled module, whose parameters are to come and go."""
    for name, each in module.named_modules():
        is_compiled = type(each).__name__ == "OptimizedModule" or each._compiled_call_impl
        if is_compiled:
            raise ConfigError(
                f'zero_optimization.stage 3: module "{name}" is compiled, and what torch.compile '
                f"makes reads parameters where nothing can bring them: take stage 2"
            )
