"""Makes new weights of a step's gradients, by an optimizer and a scheduler of the script's.

What the engines of penstock.zero and penstock.pipe have in common.  Loss scale, clipping, masters
of 32 bits and files are C++ (penstock/runtime/update/update.h), which calls the optimizer back.
Knows no models and no losses, and no other ranks: who calls it knows the gradient's norm.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock import _torch
from penstock._engines.parameters.precision import type_of
from penstock._engines.update.optimizers import Scheduler, make_scheduler
from penstock._engines.update.stepped_optimizer import tell
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock import _runtime
    from penstock._engines.parameters.zero_settings import ZeroSettings
    from penstock._runtime import GradientScale, UpdateRequest
    from penstock.configuration import Configuration

__all__ = ["Replicated", "Update", "check_new"]

_log = logging.getLogger("penstock")


class Replicated(Protocol):
    """Parameters, of which this rank updates its parts."""

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """The trainable parameters, each once."""

    @property
    def parts(self) -> Sequence[Sequence[torch.Tensor]]:
        """What this rank updates of each parameter: itself, its slices, or nothing."""

    def update(self, request: UpdateRequest) -> _runtime.Update:
        """An Update of `parts`."""

    def take_over(self) -> None:
        """What a script has set parameters to since the last backward; also inside of a step."""

    def before_update(self) -> None:
        """Takes over what a script has set.

        Raises Error, by name, for what cannot be trained on.
        """

    def after_update(self) -> None:
        """Collective: parts have new values, and their gradients are of no use any more."""

    def drop_gradients(self) -> None:
        """Drops the gradients of parameters and parts."""


def check_new(optimizer: torch.optim.Optimizer, *, is_whole: bool) -> None:
    """Raises ConfigError for one that does not update what an engine gives it.

    That has taken steps, where it is to update something else than whole parameters, or needs
    gradients that are sparse.
    """
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigError(
            f"optimizer {kind} needs sparse gradients, and an engine's are dense, also of modules "
            f"with sparse=True: take Adam"
        )
    if is_whole:
        return
    for parameter, states in optimizer.state.items():
        if all(map(_is_as_made, repeat(parameter.shape), states, states.values())):
            continue
        raise ConfigError(
            f"optimizer {kind} has taken steps: its states are of whole parameters, and with ZeRO, "
            f"fp16 or bf16 it updates something else: give a new one, and load states by "
            f"engine.load_checkpoint()"
        )


def _is_as_made(shape: torch.Size, name: str, state: Any) -> bool:
    """Whether a state has nothing of any step, as that which Adagrad makes in its constructor."""
    if name == "step":
        return float(state) == 0
    if isinstance(state, torch.Tensor) and state.shape == shape and state.numel():
        return bool((state == state.flatten()[0]).all())
    return True


def _of_shape(master: torch.Tensor, of: torch.Tensor, state: Any) -> Any:
    """A state that is as it was made for the parameter `of`, for its master."""
    if not isinstance(state, torch.Tensor):
        return copy.deepcopy(state)
    if state.shape != of.shape or not state.numel():
        return state.clone()
    return torch.full_like(master, state.flatten()[0].item(), dtype=state.dtype)


_ELEMENTS_AT_ONCE = 1 << 22  # Are updated, and in memory, while others are in a file.
_ALL = 1 << 62


class Update:
    """What updates this rank's parts of parameters.

    optimizer: was made of the parameters; from now on it updates the masters of their parts.
    updated: the numbers of the parameters that it was made for.
    masters: by part of these, as parameters go.
    group_parameters: by parameter group, what it was made for.
    is_short: parameters are of 16 bits: a step that overflows is skipped.
    stage: of ZeRO.  norm: of the last step's gradient.
    needs_scale: losses are multiplied by the loss scale, as under fp16.
    short_type: of 16 bits, that parameters are of; None.  fp16: that section of the configuration.
    steps: begun so far, with those that were skipped.
    """

    def __init__(
        self,
        config: Configuration,
        replicated: Replicated,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None,
        scale: GradientScale,
        *,
        settings: ZeroSettings,
        is_short: bool,
    ) -> None:
        self.optimizer = optimizer
        self.clipping = float(config.settings["gradient_clipping"])
        self.scale = scale
        self.was_applied = self.has_overflowed = False
        self.stage = settings.stage
        self.norm = 0.0
        self.fp16: Mapping[str, Any] = config.settings["fp16"]
        self.needs_scale = bool(self.fp16["enabled"])
        self.short_type = type_of(config)
        self.steps = 0
        self._replicated = replicated
        self.group_parameters = [list(group["params"]) for group in optimizer.param_groups]
        made_for = {id(each) for group in optimizer.param_groups for each in group["params"]}
        self.updated = [i for i, each in enumerate(replicated.parameters) if id(each) in made_for]
        request: type[UpdateRequest] = _torch.load().UpdateRequest
        self._update = replicated.update(
            request(
                parameters=self.updated,
                scale=scale,
                clipping=self.clipping,
                skips_overflows=is_short,
                states_folder=settings.states_folder,
                elements_at_once=_ELEMENTS_AT_ONCE if settings.has_files else _ALL,
            )
        )
        self.masters = self._update.masters
        counts = [len(replicated.parts[i]) for i in self.updated]
        self._first = dict(zip(self.updated, accumulate(counts, initial=0), strict=False))
        self._part_of = {id(each): part for part, each in enumerate(self.masters)}
        self._kept: dict[tuple[int, str], torch.Tensor] = {}
        self._before: list[dict[str, Any]] = []
        self._give_masters()
        tell(optimizer, self)
        self.lr_scheduler = make_scheduler(config, optimizer, lr_scheduler)

    @property
    def skipped_steps(self) -> int:
        """Steps whose gradients overflowed."""
        return int(self._update.skipped_steps)

    @skipped_steps.setter
    def skipped_steps(self, steps: int) -> None:
        self._update.skipped_steps = steps

    def norm_of(self, squares: Sequence[float]) -> float:
        """A gradient's norm, without the loss scale, from squares by parameter, in model order."""
        norm: float = _torch.load().gradient_norm(squares)
        return norm / self.scale.value

    def apply(
        self,
        norm: float,
        step: int,
        where: str = "",
        lr_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Step number `step` of the optimizer; then there are no gradients.

        norm: the whole gradient's.  One that is not finite changes nothing: in 16 bits the step is
        skipped, and the loss scale falls; else it is a penstock.Error, which says `where`.
        """
        self.was_applied = False
        self._replicated.before_update()
        self._check_groups()
        self.steps += 1
        self.norm = norm
        scale = self.scale.value
        try:
            self.was_applied = self._update.apply(norm, step, where, self._step)
            self.has_overflowed = not self.was_applied
        finally:
            if not self.was_applied:
                self._replicated.drop_gradients()
        if not self.was_applied:
            _log.warning("step %d is skipped: the gradient overflows at loss scale %g", step, scale)
            return
        self._replicated.after_update()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step(**(lr_kwargs or {}))

    def _check_groups(self) -> None:
        """Raises ConfigError for a parameter that a script has put in a group meanwhile."""
        for i, group in enumerate(self.optimizer.param_groups):
            for each in group["params"]:
                if id(each) not in self._part_of:
                    raise ConfigError(
                        f"optimizer.param_groups[{i}] has a parameter of shape "
                        f"{tuple(each.shape)} which it had not when training was set up: its "
                        f"gradients are not summed over the replicas",
                        ("give penstock.initialize() all parameters, those to come frozen",),
                    )

    def parts_of(self, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's parts of the trainable parameter of that number, each with its master."""
        parts = self._replicated.parts
        if number not in self._first:
            return []
        first = self._first[number]
        return list(zip(parts[number], self.masters[first:], strict=False))

    def parts(self) -> list[torch.Tensor]:
        """This rank's parts, in the order of their masters."""
        return [part for number in self.updated for part, _ in self.parts_of(number)]

    def gradients(self) -> dict[int, list[torch.Tensor | None]]:
        """Gradients of this rank's parts, by parameter group; not yet unscaled and clipped."""
        of_master = {
            id(master): part.grad
            for number in self.updated
            for part, master in self.parts_of(number)
        }
        groups = self.optimizer.param_groups
        return {
            i: [of_master[id(each)] for each in group["params"] if id(each) in of_master]
            for i, group in enumerate(groups)
        }

    def take_changes(self) -> None:
        """Masters of what a script has set since the last update become that."""
        self._replicated.take_over()
        self._update.take_changes()

    def put_back(self) -> None:
        """Collective: masters and parts have other values, those of a checkpoint."""
        self._update.put_back()
        self._replicated.after_update()

    def keep(self, master: torch.Tensor) -> None:
        """The states of a master, which were just set, go to their file, if they have one."""
        if self._update.has_files:
            part = self._part_of[id(master)]
            self._keep_states(part)
            self._update.let_go(part)

    def _give_masters(self) -> None:
        masters = iter(self.masters)
        parameters, parts = self._replicated.parameters, self._replicated.parts
        parts_of = {id(parameters[i]): list(islice(masters, len(parts[i]))) for i in self.updated}
        for parameter, states in list(self.optimizer.state.items()):
            self._hand_on(parameter, states, parts_of.get(id(parameter), []))
        for group in self.optimizer.param_groups:
            group["params"] = [
                part for each in group["params"] for part in parts_of.get(id(each), [])
            ]

    def _hand_on(
        self, of: torch.Tensor, states: dict[str, Any], masters: Sequence[torch.Tensor]
    ) -> None:
        """States that were made with the optimizer become those of masters."""
        if any(each is of for each in masters):
            return
        del self.optimizer.state[of]
        for master in masters:
            self.optimizer.state[master] = {
                name: _of_shape(master, of, state) for name, state in states.items()
            }

    def _step(self, first: int, end: int) -> None:
        """Steps the masters [first, end), which alone have gradients."""
        if not self._update.has_files:  # All have one turn.
            self.optimizer.step()
            return
        self._begin_turn(first)
        self.optimizer.step()
        for part in range(first, end):
            self._keep_states(part)

    def _begin_turn(self, first: int) -> None:
        """A count that a group has, of steps for example, rises once for all turns of a step."""
        groups = self.optimizer.param_groups
        if first == 0:
            self._before = [{**group, "params": None} for group in groups]
            return
        for group, before in zip(groups, self._before, strict=True):
            now = {**before, "params": group["params"]}
            group.clear()
            group.update(now)

    def _keep_states(self, part: int) -> None:
        """What the optimizer keeps of a part's size goes where its states are, in a file or not."""
        master = self.masters[part]
        states: dict[str, Any] = self.optimizer.state.get(master, {})
        for name, state in states.items():
            if not isinstance(state, torch.Tensor) or state.shape != master.shape:
                continue
            place = self._kept.get((part, name))
            if place is None or place.dtype != state.dtype:
                states[name] = self._kept[part, name] = self._update.keep(part, state)
            elif place is not state:
                states[name] = place.copy_(state)
