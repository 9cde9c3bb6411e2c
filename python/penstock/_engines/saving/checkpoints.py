"""Checkpoints of an engine: any other layout can go on from them, and so can `penstock train`.

    DIRECTORY/latest    the tag to load if none is given
    DIRECTORY/TAG/      a checkpoint, as docs/checkpoint_format.md has it

Tensors of the model and the optimizer are saved by name and element.  All else is values: what all
ranks have in common ("engine"), what each has of its own ("of stage 1, replica 0"), extra states
of modules, and what an optimizer keeps besides tensors.
A call that fails on one rank fails on all, and leaves the
engine as it was.  What is saved, and why: docs/migrating_from_deepspeed.md.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock import _planning, _torch
from penstock._engines.ranks.agreement import together
from penstock._engines.ranks.process_groups import telling_others
from penstock._engines.saving import random_states
from penstock._engines.saving.module_states import (
    buffers_of,
    digest,
    equal,
    put_buffers,
    state_of,
    with_extra_states,
)
from penstock._engines.saving.parameter_groups import SavedGroup, in_places
from penstock._engines.saving.pieces import WEIGHT, Pieces, Read
from penstock._engines.saving.saved_checkpoint import (
    LATEST,
    OF_STAGE,
    Values,
    agree_on_checkpoint,
    check_names,
    folder_of,
    open_checkpoint,
    own_key,
    states_in,
    value_pieces,
)
from penstock._engines.saving.saved_optimizer import (
    SCALE,
    SKIPPED,
    check_kind,
    check_words,
    groups_of,
    scale_in,
    skipped_in,
)
from penstock._engines.saving.saved_values import to_text
from penstock.errors import AssertedError, CheckpointError, ConfigError

if TYPE_CHECKING:
    from penstock._engines.update.update import Update
    from penstock._runtime import Communicator, SavedCheckpoint, StatePiece

__all__ = ["Checkpoints", "Place", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What of a checkpoint is loaded.  strict: all weights are there, and no others."""

    strict: bool
    optimizer: bool
    lr_scheduler: bool
    module_only: bool


@dataclass(frozen=True)
class Place:
    """The place of a rank.  stage: of its pipeline; layout: what makes its states its own."""

    stage: int
    replica: int
    replicas: int
    layout: Mapping[str, Any]

    def key(self, replica: int | None = None) -> str:
        """The key of the values of this rank, or of another replica."""
        return own_key(self.stage, self.replica if replica is None else replica)


class Progress(Protocol):
    """What an engine goes through, besides parameters: values, which it has and takes."""

    def counters(self) -> dict[str, int]:
        """The same on all ranks."""

    def own(self) -> dict[str, Any]:
        """Values of this rank: the place in the data, for example."""

    def check(self, own: Mapping[str, Any], common: Mapping[str, Any], *, is_own: bool) -> None:
        """Raises ConfigError for what own() does not go on from.  is_own: it is this rank's."""

    def drop_step(self) -> None:
        """Gradients of a step that has begun are gone."""

    def go_on(self, counters: Mapping[str, int]) -> None:
        """Goes on from what check() has let pass."""


@dataclass
class _Found:
    """What of a checkpoint a rank has read, and found to fit."""

    saved: SavedCheckpoint
    values: Values
    common: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    all_own: list[dict[str, Any]] = field(default_factory=list)
    groups: list[SavedGroup | None] = field(default_factory=list)
    skipped_steps: int = 0
    scale: dict[str, Any] | None = None
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    client_state: dict[str, Any] = field(default_factory=dict)
    is_own: bool = False
    read: Read = field(default_factory=Read)


class Checkpoints:
    """The checkpoints of an engine on this rank.  facts: how it is set up, for people."""

    def __init__(
        self,
        pieces: Pieces,
        update: Update,
        communicator: Communicator,
        place: Place,
        course: Progress,
        facts: Mapping[str, str],
    ) -> None:
        self._pieces = pieces
        self._update = update
        self._communicator = communicator
        self._place = place
        self._course = course
        self._first_course = copy.deepcopy(state_of(update.lr_scheduler))
        self._facts = {**facts, "optimizer": type(update.optimizer).__name__}

    def save(
        self,
        directory: Path,
        tag: str,
        step: int,
        client_state: Mapping[str, Any] | None,
        *,
        is_latest: bool,
        with_frozen: bool,
    ) -> Path:
        """Collective: writes a tag in the place of what it was."""
        first = self._communicator.rank == 0
        pieces: list[StatePiece] = []
        texts: dict[str, str] = {}

        def collect() -> str:
            self._update.take_changes()
            pieces.extend(self._pieces.of_parameters(with_frozen=with_frozen))
            pieces.extend(self._pieces.of_buffers())
            values = {self._place.key(): self._own(buffers), **self._of_modules()}
            if first:
                values["engine"] = self._common(with_frozen=with_frozen)
                if not isinstance(client_state or {}, Mapping):
                    raise ConfigError(f"client_state is a {type(client_state).__name__}, no dict")
                values["client_state"] = dict(client_state or {})
                texts.update(self._course_of_update())
            for key, value in values.items():
                texts[key], tensors = to_text(value, key)
                pieces.extend(value_pieces(key, tensors))
            return str(directory.absolute() / tag)

        buffers = self._own_buffers()
        folders = self._together("save_checkpoint", collect)
        if len(set(folders)) > 1:
            raise AssertedError(f"save_checkpoint: ranks save to {', '.join(sorted(set(folders)))}")
        folder = _torch.load().save_checkpoint(
            self._communicator,
            str(directory),
            name=tag,
            step=step,
            facts=self._facts,
            values=texts,
            pieces=pieces,
            replicas=self._place.replicas,
            replica=self._place.replica,
        )

        def name_latest() -> str:
            if first and is_latest:
                _planning.write_atomically(str(directory / LATEST), f"{tag}\n")
            return ""

        self._together("checkpoint is there", name_latest)
        return Path(folder)

    def load(self, directory: Path, tag: str | None, wanted: Wanted) -> tuple[Path, Any] | None:
        """Collective: the folder, and the client_state.

        None where there is no checkpoint, and no tag is given.
        """
        found: list[_Found] = []

        def find() -> str:
            folder = folder_of(directory, tag)
            if folder is not None:
                saved = open_checkpoint(folder)
                found.append(_Found(saved, Values(saved)))
            return ""

        self._together("load_checkpoint", find)
        opened = found[0].saved if found else None
        agree_on_checkpoint(self._communicator, opened, repr(wanted))
        if not found:
            return None
        self._check(found[0], wanted)
        self._put_undoable(found[0], wanted)
        with telling_others(self._communicator):
            self._put(found[0], wanted)
        self._communicator.exchange("checkpoint loaded", "")
        return Path(found[0].saved.folder), found[0].client_state

    def _together(self, what: str, own: Callable[[], str]) -> list[str]:
        return together(self._communicator, what, own)

    def _own(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """What differs by rank."""
        course = self._update.lr_scheduler
        if course is not None and not hasattr(course, "state_dict"):
            raise ConfigError(
                f"lr_scheduler is a {type(course).__name__} without state_dict(): a checkpoint "
                f"cannot hold it"
            )
        scheduler = None
        if course is not None:
            scheduler = {"type": type(course).__name__, "state": state_of(course)}
        return {
            "random": random_states.take(),
            "buffers": dict(buffers),
            "param_groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in self._update.optimizer.param_groups
            ],
            "group_names": self._pieces.group_names(),
            "lr_scheduler": scheduler,
            "shared": self._pieces.shared(),
            "frozen": self._pieces.frozen(),
            **self._course.own(),
        }

    def _common(self, *, with_frozen: bool) -> dict[str, Any]:
        """What is the same on all ranks."""
        return {
            "layout": dict(self._place.layout),
            "counters": self._course.counters(),
            "optimizer": type(self._update.optimizer).__name__,
            "with_frozen": with_frozen,
        }

    def _course_of_update(self) -> dict[str, str]:
        scale = self._update.scale.state()
        texts = {SKIPPED: str(self._update.skipped_steps)}
        if scale is not None:
            texts[SCALE] = f"{scale['value']!r} {scale['lives']} {scale['clean_steps']}"
        return texts

    def _of_modules(self) -> dict[str, Any]:
        """Extra states, and what the optimizer keeps besides tensors, by the key of the value."""
        found: dict[str, Any] = {
            f"states of {name}": states for name, states in self._pieces.other_states().items()
        }
        if self._place.replica == 0:
            for name, (prefix, module) in with_extra_states(self._pieces).items():
                if prefix in self._pieces.written:
                    found[f"extra state of {name}"] = module.get_extra_state()
        return found

    def _own_buffers(self) -> dict[str, torch.Tensor]:
        """Collective: those that a checkpoint does not have by name: this replica's own."""
        buffers = buffers_of(self._pieces)
        digests: dict[str, str] = {}
        persistent: set[str] = set()

        def tell() -> str:
            persistent.update(piece.name for piece in self._pieces.of_buffers())
            digests.update({name: digest(name, each) for name, each in buffers.items()})
            return json.dumps([self._place.stage, self._place.replica, digests])

        told = self._together("buffers", tell)
        of_first: dict[str, str] = next(
            digests
            for stage, replica, digests in map(json.loads, told)
            if (stage, replica) == (self._place.stage, 0)
        )
        is_first = self._place.replica == 0
        return {
            name: each
            for name, each in buffers.items()
            if (is_first and name not in persistent)
            or (not is_first and of_first.get(name) != digests[name])
        }

    def _check(self, found: _Found, wanted: Wanted) -> None:
        """Collective: all that this rank reads is there, fits, and is as it was written."""
        names = self._together("weights", lambda: json.dumps(sorted(self._pieces.names())))
        known = {name for each in names for name in json.loads(each)}

        def check() -> str:
            values = found.values.texts
            if "engine" in values:
                found.common = found.values.read("engine")
                found.client_state = found.values.read("client_state")
            found.is_own = found.common.get("layout") == dict(self._place.layout)
            optimizer = wanted.optimizer and not wanted.module_only
            found.read = self._pieces.reading(found.saved, optimizer=optimizer)
            self._check_weights(found, known, wanted)
            if not wanted.module_only:
                self._read_own(found)
                self._check_groups(found, wanted)
                found.skipped_steps = skipped_in(found.saved.folder, values)
                if optimizer:
                    self._check_optimizer(found)
                    found.scale = scale_in(found.saved.folder, values)
            for piece in found.read.pieces:
                found.saved.verify(piece)
            for states in found.read.states.values():
                for _, make in states:
                    found.saved.verify(make())
            return ""

        self._together("checkpoint read", check)

    def _check_weights(self, found: _Found, known: set[str], wanted: Wanted) -> None:
        here = {name for name, states in states_in(found.saved).items() if WEIGHT in states}
        with_frozen = found.common.get("with_frozen", True)
        frozen = set(self._pieces.frozen())
        kept, missing = [], []
        for piece in found.read.pieces:
            if piece.name in here:
                found.saved.check(piece)
                kept.append(piece)
            elif with_frozen or piece.name not in frozen:
                missing.append(piece.name)
        found.read.pieces = kept
        if wanted.strict:
            check_names(found.saved, missing, here - known)

    def _check_optimizer(self, found: _Found) -> None:
        kind, folder = type(self._update.optimizer).__name__, found.saved.folder
        if "optimizer" in found.common:
            check_kind(folder, found.common["optimizer"], kind)
        else:
            words = {state for states in found.read.states.values() for state, _ in states}
            check_words(folder, words, kind)

    def _check_groups(self, found: _Found, wanted: Wanted) -> None:
        """Finds where options and a scheduler's numbers go; those of one group stay."""
        names = self._pieces.group_names()
        counts = [len(names), *(len(own.get("param_groups") or []) for own in found.all_own)]
        has_course = None not in (self._update.lr_scheduler, found.own.get("lr_scheduler"))
        if wanted.optimizer or (wanted.lr_scheduler and has_course and max(counts) > 1):
            found.groups = groups_of(found.saved.folder, found.all_own, names, strict=wanted.strict)

    def _read_own(self, found: _Found) -> None:
        """Reads this rank's values; in another layout, all ranks' values, which are the same."""
        for key in found.values.texts:
            if key.startswith("states of "):
                found.states[key.removeprefix("states of ")] = found.values.read(key)
        if found.is_own:
            found.own = found.values.read(self._place.key())
            found.all_own = [found.own]
            of_first = found.values.read(self._place.key(0)) if self._place.replica else {}
            found.buffers = {**of_first.get("buffers", {}), **found.own["buffers"]}
            return
        keys = sorted(key for key in found.values.texts if key.startswith(OF_STAGE))
        found.all_own = [found.values.read(key) for key in keys]
        for each, own in zip(keys, found.all_own, strict=True):
            if not equal(own["lr_scheduler"], found.all_own[0]["lr_scheduler"]):
                raise ConfigError(
                    f"{found.saved.folder}: lr_scheduler differs by rank ({keys[0]} and {each}), "
                    f"so that it goes on only with the stages, replicas and schedule that saved it"
                )
        found.own = found.all_own[0] if found.all_own else {}

    def _put_undoable(self, found: _Found, wanted: Wanted) -> None:
        """Collective: extra states, the learning rate and the data, or nothing at all."""
        course = self._update.lr_scheduler if wanted.lr_scheduler else None
        course = course if hasattr(course, "load_state_dict") else None
        undo: list[Callable[[], Any]] = []

        def put() -> str:
            for name, (_, module) in with_extra_states(self._pieces).items():
                key = f"extra state of {name}"
                if key in found.values.texts:
                    undo.append(
                        partial(module.set_extra_state, copy.deepcopy(module.get_extra_state()))
                    )
                    self._put_extra(module, name, found.values.read(key))
            if course is not None:
                before = copy.deepcopy(state_of(course))
                undo.append(lambda: course.load_state_dict(before))
                self._put_scheduler(found, course)
            if not wanted.module_only:
                self._course.check(found.own, found.common, is_own=found.is_own)
            return ""

        try:
            self._together("checkpoint fits", put)
        except Exception:
            for each in reversed(undo):
                with suppress(Exception):  # A module that refuses its own state keeps what it has.
                    each()
            raise

    def _put_extra(self, module: torch.nn.Module, name: str, state: Any) -> None:
        try:
            module.set_extra_state(state)
        except Exception as error:  # The class is the user's own.
            raise CheckpointError(f"the extra state of {name} does not fit: {error}") from error

    def _put_scheduler(self, found: _Found, course: Any) -> None:
        saved = found.own.get("lr_scheduler")
        if saved is None:
            return
        if saved["type"] != type(course).__name__:
            raise ConfigError(
                f"the checkpoint has lr_scheduler {saved['type']}, and this engine has "
                f"{type(course).__name__}: make the one that was saved, or say "
                f"load_lr_scheduler_states=False"
            )
        where = f"{found.saved.folder}: lr_scheduler"
        course.load_state_dict(in_places(saved["state"], found.groups, where))

    def _put(self, found: _Found, wanted: Wanted) -> None:
        """Collective.  All that is read fits."""
        update = self._update
        self._pieces.put(found.saved, found.read, found.states)
        update.put_back()
        self._course.drop_step()
        if wanted.module_only:
            return
        self._course.go_on(found.common.get("counters") or {"steps": found.saved.step})
        update.skipped_steps = found.skipped_steps
        update.scale.begin_again()
        if wanted.optimizer:
            for group, saved in zip(update.optimizer.param_groups, found.groups, strict=True):
                if saved is not None:
                    group.update(copy.deepcopy(dict(saved.options)))
            if found.scale is not None:
                update.scale.go_on_from(**found.scale)
        elif wanted.lr_scheduler and (course := update.lr_scheduler) is not None:
            rates = course.get_last_lr() if hasattr(course, "get_last_lr") else []
            for group, rate in zip(update.optimizer.param_groups, rates, strict=False):
                group["lr"] = rate
        if wanted.lr_scheduler and found.own.get("lr_scheduler") is None:
            self._go_to(found.saved.step - update.skipped_steps)
        if found.is_own:
            put_buffers(self._pieces, found.buffers)
            random_states.put(found.own["random"])

    def _go_to(self, step: int) -> None:
        """Steps a course whose state no checkpoint has, that of `penstock train` for example."""
        course: Any = self._update.lr_scheduler
        if not hasattr(course, "last_epoch") or "_last_lr" not in self._first_course:
            return
        course.load_state_dict(copy.deepcopy(self._first_course))
        groups = self._update.optimizer.param_groups
        for group, rate in zip(groups, self._first_course["_last_lr"], strict=True):
            group["lr"] = rate
        with warnings.catch_warnings():
            # Torch warns that the optimizer has taken no steps.
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(step):
                course.step()
