"""Backwards of a model that its engine does not run: `loss.backward()` in a script.

They begin where the gradient of something that the model's forward has returned comes.  From there
to their end operators bring what they read, as in a backward of the engine.  What they add to
gradients is multiplied in C++ (penstock/execute/added_gradients.h), wherever they begin.
Knows no optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable
from torch.utils.weak import WeakIdKeyDictionary

from penstock._calls import calling
from penstock.errors import Error
from penstock.zero._external import tensors_in

if TYPE_CHECKING:
    from penstock._runtime import GradientScale, ModuleReplica

__all__ = ["Backwards"]

_NEEDS_SCALE = (
    "fp16 needs losses that are multiplied by the loss scale: call engine.backward(loss), or "
    "engine.scale(loss).backward(), in place of loss.backward()"
)


# By parameter: the Backwards of the engine that was made last of those that have it.
_last: Any = WeakIdKeyDictionary()


class Backwards:
    """Of one model.  Those of an earlier engine of all its parameters leave gradients alone.

    parameters: those that are trainable.
    running: makes a context in which operators bring what they read.
    factor: what such a backward adds to gradients is multiplied by it.
    scale: that of losses, which such a backward has to begin with; None: it need not.
    is_engines: the backward that runs is one of the engine.
    """

    def __init__(
        self,
        replica: ModuleReplica,
        running: Callable[[], AbstractContextManager[None]],
        factor: float,
        scale: GradientScale | None,
        parameters: Sequence[torch.nn.Parameter],
    ) -> None:
        self.is_engines = False
        self._is_last = True
        self._replica = replica
        self._running = running
        self._factor = factor
        self._scale = scale
        self._is_scaled = False
        self._under_way: ExitStack | None = None
        self._on_output = _hook_of(weakref.ref(self))
        self._parameters = {id(each) for each in parameters}
        self._formers: list[weakref.ref[Backwards]] = []
        self._take_over(parameters)
        self._refuse()

    @property
    def is_inside(self) -> bool:
        """Whether the caller is run by one, as what is computed again is."""
        if self._under_way is None and not self.is_engines:
            return False
        return torch._C._current_graph_task_id() != -1

    def resize(self, factor: float) -> None:
        """From now on what backwards add is multiplied by it."""
        self._factor = factor
        self._refuse()

    def watch(self, output: object) -> None:
        """Of what a forward has returned."""
        if not torch.is_grad_enabled():
            return
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._on_output)  # type: ignore[no-untyped-call]

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the loss scale, if there is one."""
        if self._scale is None:
            return loss
        value, mine = self._scale.value, weakref.ref(self)

        def begin(_: torch.Tensor) -> None:
            if (backwards := mine()) is not None:
                backwards._begin_scaled(value)

        result = loss.float() * value
        if result.requires_grad:
            result.register_hook(begin)  # type: ignore[no-untyped-call]
        return result

    @contextmanager
    def of_engine(self, factor: float) -> Iterator[None]:
        """While one of the engine runs, whose loss is multiplied by `factor`."""
        self.is_engines = True
        self._have_formers_undo(factor)
        try:
            yield
        finally:
            self.is_engines = False
            self._have_formers_undo(1.0)

    def check_over(self) -> None:
        """Raises Error where one has begun, and has not come to its end."""
        if self._is_scaled:
            self._refuse()
        if self._under_way is None:
            return
        with self._ended():
            raise Error(
                "a backward() has failed after it had begun: gradients have a part of what it adds",
                ("engine.zero_grad() drops what the step's backwards have added",),
            )

    def forget(self) -> None:
        """Whatever has begun is over."""
        if self._under_way is not None:
            with self._ended(), suppress(Error):
                self._replica.abandon()
        self._refuse()

    def _begin(self) -> None:
        if self._under_way is not None:
            return
        self._replica.check_backward()
        with ExitStack() as stack:
            stack.enter_context(calling("backward()"))
            stack.enter_context(self._running())
            self._replica.begin_backward()
            _at_end(self._end)
            self._under_way = stack.pop_all()

    def _end(self) -> None:
        with self._ended():
            self._replica.end_backward()

    def _ended(self) -> ExitStack:
        assert self._under_way is not None
        stack, self._under_way = self._under_way, None
        return stack

    def _begin_scaled(self, value: float) -> None:
        assert self._scale is not None
        if self.is_engines:
            raise Error("engine.backward() scales the loss itself: give it the loss, unscaled")
        if value != self._scale.value:
            raise Error(
                f"the loss was multiplied by {value:g}, and the loss scale is "
                f"{self._scale.value:g} by now: call engine.scale() after engine.step()"
            )
        self._is_scaled = True
        self._replica.accept_backwards(self._factor)
        _at_end(self._refuse)

    def _take_over(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for each in parameters:
            former = _last.get(each)
            backwards = None if former is None else former()
            _last[each] = weakref.ref(self)
            if backwards in (None, self) or not backwards._parameters <= self._parameters:
                continue
            if backwards._is_last:
                backwards._is_last = False
                backwards._refuse()
                self._formers += [*backwards._formers, former]

    def _have_formers_undo(self, factor: float) -> None:
        """A replica divides its own factor by that of the loss that another one multiplies."""
        for former in self._formers:
            if (backwards := former()) is not None:
                backwards._replica.accept_backwards(factor)

    def _refuse(self) -> None:
        """Those that do not begin with a scaled loss, where it has to be."""
        self._is_scaled = False
        if not self._is_last:
            self._replica.accept_backwards(1.0)
        elif self._scale is None:
            self._replica.accept_backwards(self._factor)
        else:
            self._replica.refuse_backwards(_NEEDS_SCALE)


def _hook_of(mine: weakref.ref[Backwards]) -> Callable[[torch.Tensor], None]:
    """For outputs, which may outlive the engine and have nothing of it."""

    def begin(_: torch.Tensor) -> None:
        backwards = mine()
        if backwards is not None and not backwards.is_engines:
            backwards._begin()

    return begin


def _at_end(function: Callable[[], Any]) -> None:
    """Has it called when the backward that runs is over, unless that fails."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)
