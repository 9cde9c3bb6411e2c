"""Backwards of a model that its engine does not run: `loss.backward()` in a script.

They begin where the gradient of something that the model's forward has returned comes.  From there
to their end operators bring what they read, as in a backward of the engine, and gradients are those
of the loss divided by the step's microbatches.  Knows no optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable

from penstock._calls import calling
from penstock._engines.parameters.external_parameters import tensors_in
from penstock._engines.parameters.nested_backwards import Outputs
from penstock.errors import Error

if TYPE_CHECKING:
    from penstock._runtime import GradientScale, ModuleReplica

__all__ = ["Backwards"]

_NEEDS_SCALE = (
    "fp16 needs losses that are multiplied by the loss scale: call engine.backward(loss), or "
    "engine.scale(loss).backward(), in place of loss.backward()"
)
_AROUND = (
    "a backward through no output of this engine's forward adds gradients that are not divided by "
    "the {} microbatches of a step: call the engine, not its module, or engine.backward(loss)"
)


class Backwards:
    """Watches the backwards of one model.

    running: makes a context in which operators bring what they read.
    microbatches: of a step.
    scale: that of losses, which such a backward has to begin with; None: it need not.
    is_engines: the backward that runs is one of the engine.
    """

    _engines_running = 0  # Counts those of all engines: their losses are divided already.

    def __init__(
        self,
        replica: ModuleReplica,
        running: Callable[[], AbstractContextManager[None]],
        microbatches: int,
        scale: GradientScale | None,
    ) -> None:
        self.is_engines = False
        self._microbatches = microbatches
        self._replica = replica
        self._running = running
        self._scale = scale
        self._is_scaled = False
        self._under_way: ExitStack | None = None
        self._refuse()

    @property
    def is_inside(self) -> bool:
        """Whether the caller is run by one, as what is computed again is."""
        if self._under_way is None and not self.is_engines:
            return False
        return torch._C._current_graph_task_id() != -1

    def resize(self, microbatches: int) -> None:
        """Steps have so many from now on."""
        self._microbatches = microbatches
        self._refuse()

    def watch(self, output: object) -> None:
        """Watches the backwards of what a forward has returned."""
        if not torch.is_grad_enabled():
            return
        outputs = Outputs()
        arrive = _hook_of(weakref.ref(self), outputs)
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                outputs.add(tensor)
                tensor.register_hook(arrive)  # type: ignore[no-untyped-call]

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
    def of_engine(self) -> Iterator[None]:
        """While one of the engine runs."""
        self.is_engines = True
        Backwards._engines_running += 1
        try:
            yield
        finally:
            Backwards._engines_running -= 1
            self.is_engines = False

    def check_over(self) -> None:
        """Raises Error where one has begun, and has not come to its end."""
        self._end_scaled()
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
        self._end_scaled()

    def _arrive(self, outputs: Outputs, gradient: torch.Tensor) -> torch.Tensor | None:
        """The gradient of an output has come; what it is from here on, if that is another."""
        if self.is_engines:
            return None
        if self._under_way is None:
            self._begin()
        if Backwards._engines_running or self._microbatches == 1:
            return None
        if not self._replica.adds_gradients:
            return None  # torch.autograd.grad(), which gives torch's own.
        assert self._under_way is not None
        outputs.keep_undivided_inside(self._microbatches, self._under_way)
        return gradient / self._microbatches

    def _begin(self) -> None:
        if self._needs_scale:
            raise Error(_NEEDS_SCALE)
        with ExitStack() as stack:
            stack.enter_context(calling("backward()"))
            stack.enter_context(self._running())
            self._replica.begin_backward()
            _at_end(self._end)
            self._under_way = stack.pop_all()
        self._refuse()

    def _end(self) -> None:
        with self._ended():
            self._replica.end_backward()

    def _ended(self) -> ExitStack:
        assert self._under_way is not None
        stack, self._under_way = self._under_way, None
        self._refuse()
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
        self._refuse()
        _at_end(self._end_scaled)

    def _end_scaled(self) -> None:
        self._is_scaled = False
        self._refuse()

    @property
    def _needs_scale(self) -> bool:
        is_scaled = self._is_scaled or Backwards._engines_running > 0
        return self._scale is not None and not is_scaled

    def _refuse(self) -> None:
        """Refuses backwards that nobody scales or divides, where it has to be."""
        if self._needs_scale:
            self._replica.refuse_backwards(_NEEDS_SCALE)
        elif self._under_way is None and self._microbatches > 1:
            self._replica.refuse_backwards(_AROUND.format(self._microbatches))
        else:
            self._replica.accept_backwards()


def _hook_of(mine: weakref.ref[Backwards], outputs: Outputs) -> Callable[..., Any]:
    """A hook for outputs, which may outlive the engine and have nothing of it."""

    def arrive(gradient: torch.Tensor) -> torch.Tensor | None:
        backwards = mine()
        return None if backwards is None else backwards._arrive(outputs, gradient)

    return arrive


def _at_end(function: Callable[[], Any]) -> None:
    """Has it called when the backward that runs is over, unless that fails."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)
