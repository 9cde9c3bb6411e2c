"""What optimizers have of parameters, by parameter: weights of 32 bits, gradients, states.

The calls with "full" speak of whole parameters, under any stage of ZeRO, and are collective over
the replicas that share one; those with "local" of this rank's part, flat, and not.
A safe_set_* raises ValueError for a tensor with another number of elements than the parameter, or
this rank's part of it, has.
A gradient is that of the step's accumulation, summed over its replicas, without the loss scale and
before clipping: it is there from the last backward of a step to step().
Knows no models: engines say what they train.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch

from penstock._calls import for_all_ranks
from penstock._compatibility import published_as
from penstock._engines.module.module_steps import ModuleSteps
from penstock.errors import Error

__all__ = [
    "Fragments",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
]

_Part = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
_GRADIENT, _WEIGHT = "gradient", "weight"  # Names beside those of an optimizer's states.


class Fragments:
    """What one engine updates of each parameter.

    Of engines that update the same parameter, the one that was made last is meant: it is the same
    one on all ranks, which make engines in one order.
    """

    _all: ClassVar[weakref.WeakValueDictionary[int, Fragments]] = weakref.WeakValueDictionary()
    _made: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, engine: ModuleSteps) -> None:
        self.model = model = engine._model
        self._engine = weakref.ref(engine)
        self._update = engine._update
        self._numbers = {id(each): number for number, each in enumerate(model.parameters)}
        self._number = next(Fragments._made)
        Fragments._all[self._number] = self

    @classmethod
    def of(cls, parameter: torch.Tensor) -> tuple[Fragments, int] | None:
        """The fragments that have a parameter, and its number; None: none updates it."""
        for made in sorted(cls._all, reverse=True):
            each = cls._all.get(made)
            number = None if each is None else each._numbers.get(id(parameter))
            if each is None or number is None or each.model.parameters[number] is not parameter:
                continue
            if number in each._update.updated:
                return each, number
        return None

    def forget(self) -> None:
        """Its engine is no longer meant."""
        Fragments._all.pop(self._number, None)

    def local(self, number: int, what: str) -> torch.Tensor | None:
        """This rank's part, flat; None where there is nothing yet."""
        if not self._update.parts_of(number):
            return torch.empty(0)
        return self._mine(number, what)

    def _mine(self, number: int, what: str) -> torch.Tensor | None:
        found = [self._read(what, *each) for each in self._update.parts_of(number)]
        there = [each.flatten() for each in found if each is not None]
        if not there:
            return None
        return torch.cat(there) if len(there) > 1 else there[0].clone()

    def set_local(self, number: int, what: str, values: torch.Tensor) -> None:
        """Sets this rank's part."""
        parts = self._update.parts_of(number)
        self._check_size(number, values, sum(part.numel() for part, _ in parts), "this rank has")
        values, begin = values.detach().flatten(), 0
        for part, master in parts:
            self._write(number, what, part, master, values[begin : begin + part.numel()])
            begin += part.numel()

    def full(self, number: int, what: str) -> torch.Tensor | None:
        """Collective: of the whole parameter; None where no rank has anything yet.

        A gradient inside no_sync() is this replica's own.
        """
        if what == _GRADIENT and self._is_local:
            own = self.model.parameters[number].grad
            return None if own is None else own / self._update.scale.value
        self._sum(what)
        mine = self._mine(number, what)
        shape = self.model.parameters[number].shape
        if not self.model.is_cut:
            return None if mine is None else mine.view(shape)
        replicas = self.model.replicas
        mine_is = "" if mine is None else str(mine.dtype)
        kinds = replicas.communicator.exchange(f"safe_get_full {what}", mine_is)
        if not any(kinds):
            return None
        dtype: torch.dtype = getattr(torch, next(filter(None, kinds)).removeprefix("torch."))
        whole = torch.zeros(shape.numel(), dtype=dtype)
        begin = 0
        for rank, first, count in self.model.pieces_of(number):
            piece = whole[first : first + count]
            if rank == replicas.rank and mine is not None:
                piece.copy_(mine[begin : begin + count])
                begin += count
            replicas.broadcast(piece, rank)
        return whole.view(shape)

    def set_full(self, number: int, what: str, values: torch.Tensor) -> None:
        """Collective: sets all of it, to values that are the same on every rank."""
        shape = self.model.parameters[number].shape
        self._check_size(number, values, shape.numel(), "the parameter has")
        self._sum(what)
        values = values.detach().flatten()
        rank = self.model.replicas.rank
        mine = [each for each in self.model.pieces_of(number) if each[0] == rank]
        for (part, master), (_, first, count) in zip(
            self._update.parts_of(number), mine, strict=True
        ):
            self._write(number, what, part, master, values[first : first + count])
        if what == _WEIGHT:
            self.model.set_whole(number, values)

    def _check_size(self, number: int, values: torch.Tensor, size: int, who: str) -> None:
        if values.numel() != size:
            name = self._name(number)
            raise ValueError(f"{name}: {values.numel()} elements are given, and {who} {size} of it")

    def _name(self, number: int) -> str:
        return self.model.names[id(self.model.parameters[number])]

    @property
    def _is_local(self) -> bool:
        engine = self._engine()
        return engine is not None and engine._is_local

    def _sum(self, what: str) -> None:
        """Gradients of a script's own backwards, if the step's are complete."""
        engine = self._engine()
        if what == _GRADIENT and engine is not None and self.model.has_gradients:
            engine.allreduce_gradients()

    def _read(self, what: str, part: torch.Tensor, master: torch.Tensor) -> torch.Tensor | None:
        if what == _WEIGHT:
            return master.detach()
        if what == _GRADIENT:
            scale = self._update.scale.value
            return None if part.grad is None else part.grad / scale if scale != 1 else part.grad
        states: dict[str, Any] = self._update.optimizer.state.get(master, {})
        return states.get(what)

    def _write(
        self,
        number: int,
        what: str,
        part: torch.Tensor,
        master: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        if what == _GRADIENT:
            if part.grad is None:
                raise Error(
                    f"{self._name(number)} has no gradient to be set: it is there from backward() "
                    f"to step()"
                )
            part.grad.view(-1).copy_(values).mul_(self._update.scale.value)
            return
        if what == _WEIGHT:
            with torch.no_grad():
                master.view(-1).copy_(values)
                part.view(-1).copy_(values)
            return
        state = self._update.optimizer.state.get(master, {}).get(what)
        if state is None:
            kind = type(self._update.optimizer).__name__
            raise Error(
                f"optimizer {kind} has no state {what!r} of {self._name(number)} yet: it is there "
                f"after a step, if the optimizer keeps it"
            )
        state.view(-1).copy_(values)


_for_replicas = for_all_ranks(
    "penstock.utils", when="under ZeRO 1 to 3, or where it ends a step's sums"
)


def _get(parameter: torch.Tensor, what: str, *, is_full: bool) -> torch.Tensor | None:
    found = Fragments.of(parameter)
    if found is None:
        return None
    fragments, number = found
    return fragments.full(number, what) if is_full else fragments.local(number, what)


def _set(parameter: torch.Tensor, what: str, values: torch.Tensor, *, is_full: bool) -> None:
    found = Fragments.of(parameter)
    if found is None:
        return
    fragments, number = found
    (fragments.set_full if is_full else fragments.set_local)(number, what, values)


@_for_replicas
def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """The parameter in 32 bits, as the optimizer updates it; None of one that it does not."""
    return _get(param, _WEIGHT, is_full=True)


@_for_replicas
def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets it; the model's parameter becomes that, rounded."""
    _set(param, _WEIGHT, value, is_full=True)


@_for_replicas
def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor | None:
    """A state of the optimizer, "exp_avg" of Adam for example; None before its first step."""
    return _get(param, optim_state_key, is_full=True)


@_for_replicas
def safe_set_full_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Sets it.  Raises Error before the optimizer's first step."""
    _set(param, optim_state_key, value, is_full=True)


@_for_replicas
def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """The step's gradient, in the type in which gradients are added; None where there is none."""
    return _get(param, _GRADIENT, is_full=True)


@_for_replicas
def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets it.  Raises Error where there is none."""
    _set(param, _GRADIENT, value, is_full=True)


def safe_update_full_grad_vectorized(
    param_list: Iterable[torch.Tensor],
    update_func: Callable[[torch.Tensor | None, torch.Tensor], torch.Tensor],
) -> None:
    """Sets each gradient to update_func(gradient, parameter)."""
    for each in param_list:
        if each.requires_grad:
            safe_set_full_grad(each, update_func(safe_get_full_grad(each), each))


def safe_get_local_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """This rank's part of the parameter in 32 bits, flat."""
    return _get(param, _WEIGHT, is_full=False)


def safe_set_local_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets it; the model's parameter becomes that after the next step."""
    _set(param, _WEIGHT, value, is_full=False)


def safe_get_local_optimizer_state(
    param: torch.Tensor, optim_state_key: str
) -> torch.Tensor | None:
    """This rank's part of a state, flat."""
    return _get(param, optim_state_key, is_full=False)


def safe_set_local_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Sets it."""
    _set(param, optim_state_key, value, is_full=False)


def safe_get_local_grad(param: torch.Tensor) -> torch.Tensor | None:
    """This rank's part of the step's gradient, flat."""
    return _get(param, _GRADIENT, is_full=False)


def safe_set_local_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets it."""
    _set(param, _GRADIENT, value, is_full=False)


published_as("penstock.utils.tensor_fragment", globals())
