"""Checkpoints of an engine, by layer and by parameter: any other layout can go on from them.

    DIRECTORY/latest                             the tag to load if none is given
    DIRECTORY/TAG/checkpoint.json                the files that belong to it
    DIRECTORY/TAG/layer_03-model_states.pt       weights and buffers of layer 3, by name
    DIRECTORY/TAG/optim_states-01-00.pt          by parameter, what a rank has for its updates: of
                                                 which elements, master, the optimizer's state
    DIRECTORY/TAG/rank_states-01-00.pt           of stage 1, replica 0: random numbers, buffers,
                                                 parameter groups, the course, the place in the data
    DIRECTORY/TAG/engine.pt                      layout, counters, loss scale, the caller's values

A tag is there as a whole or not at all (penstock/pipe/_folder.py); `latest` changes after that.  A
call that fails on one rank fails on all, and leaves the engine as it was.  What is saved, and why:
docs/migrating_from_deepspeed.md.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _planning
from penstock.errors import ConfigError
from penstock.pipe import _random
from penstock.pipe._agreement import together
from penstock.pipe._folder import Draft, Saved
from penstock.pipe._plain import from_plain, to_plain
from penstock.pipe._states import States
from penstock.pipe._weights import Weights
from penstock.pipelining._run import telling_others

if TYPE_CHECKING:
    from penstock._runtime import Communicator
    from penstock._update import Update
    from penstock.pipe._data import Rounds
    from penstock.pipe._replicated import ReplicatedStages
    from penstock.pipe._stage import Stage
    from penstock.pipe.module import PipelineModule

__all__ = ["Checkpoints", "Wanted"]

_log = logging.getLogger("penstock")
_LATEST = "latest"
_ENGINE = "engine.pt"


@dataclass(frozen=True)
class Wanted:
    """What of a checkpoint is loaded.  strict: all weights are there, and no others."""

    strict: bool
    optimizer: bool
    lr_scheduler: bool
    module_only: bool


@dataclass
class _Read:
    """What of a checkpoint a rank has read, and found to fit."""

    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    pieces: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    rank: dict[str, Any] = field(default_factory=dict)
    is_of_this_layout: bool = False
    rounds: Rounds | None = None


class Checkpoints:
    """Those of an engine on this rank.

    replica: its number, and how many there are; is_sharded: each has states of its own.
    samples: of a microbatch, over all replicas.
    """

    def __init__(
        self,
        model: PipelineModule,
        stages: Mapping[int, Stage],
        replicated: ReplicatedStages,
        update: Update,
        communicator: Communicator,
        *,
        replica: tuple[int, int],
        is_sharded: bool,
        samples: int,
    ) -> None:
        is_last = len(model._rank_of_stage) - 1 in stages
        self._model = model
        self._stages = stages
        self._replicated = replicated
        self._update = update
        self._communicator = communicator
        self._replica = replica[0]
        self._is_sharded = is_sharded
        self._samples = samples
        self._place = f"{model.stage_id:02d}-{replica[0]:02d}"
        self._layout = {
            "parts": list(model.parts),
            "ranks": list(model._rank_of_stage),
            "replicas": replica[1],
        }
        self._weights = Weights(model, is_last=is_last)
        loss = model.loss_fn if isinstance(model.loss_fn, torch.nn.Module) else None
        of_loss = loss.parameters() if loss is not None and not is_last else ()
        self._states = States(replicated, update, frozenset(map(id, of_loss)))

    def save(
        self,
        directory: Path,
        tag: str,
        counters: Mapping[str, int],
        client_state: Mapping[str, Any] | None,
        rounds: Rounds | None,
        *,
        is_latest: bool,
    ) -> Path:
        """Collective: writes a tag in the place of what it was."""
        draft, first = Draft(directory / tag), self._communicator.rank == 0
        small: dict[str, Any] = {}

        def begin() -> str:
            _check_tag(tag)
            small[f"rank_states-{self._place}.pt"] = self._own(rounds)
            if first:
                small[_ENGINE] = self._common(counters, client_state)
                draft.begin()
            return tag

        def end(failure: Exception | None) -> str:
            if failure is not None:
                raise failure
            return json.dumps(draft.files)

        def finish(written: list[str]) -> str:
            if first:
                draft.finish(
                    {name: each for of in written for name, each in json.loads(of).items()}
                )
                if is_latest:
                    _planning.write_atomically(str(directory / _LATEST), f"{tag}\n")
            return ""

        try:
            tags = self._together("save_checkpoint", begin)
            if len(set(tags)) > 1:
                raise ConfigError(f"save_checkpoint: tag differs by rank: {', '.join(tags)}")
            with telling_others(self._communicator):
                failure = self._write(draft, small)
            written = self._together("checkpoint written", lambda: end(failure))
            self._together("checkpoint is there", lambda: finish(written))
        except Exception:
            if first:
                draft.drop()
            raise
        return draft.folder

    def load(
        self, directory: Path, tag: str | None, wanted: Wanted, rounds: Rounds | None
    ) -> tuple[Path, dict[str, Any], Rounds | None] | None:
        """Collective: the folder, what save() was given of it, and where the data goes on.

        None where there is no checkpoint, and no tag is given.
        """
        found: list[Saved] = []

        def find() -> str:
            name = tag or latest(directory)
            if name is not None:
                found.append(Saved(directory / name))
            return f"{name} ({found[0].identity[:8]})" if found else "none"

        seen = self._together("load_checkpoint", find)
        if len(set(seen)) > 1:
            of_ranks = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(seen))
            raise ConfigError(f"{directory}: ranks do not see the same checkpoint: {of_ranks}")
        if not found:
            return None
        with telling_others(self._communicator):
            shapes = self._weights.shapes()
        read = _Read()
        self._together("checkpoint read", lambda: self._read(found[0], shapes, wanted, read))
        course = self._update.lr_scheduler if wanted.lr_scheduler else None
        course = course if hasattr(course, "load_state_dict") else None
        before = None if course is None else copy.deepcopy(_state_of(course))
        try:
            self._together("checkpoint fits", lambda: self._go_on(read, course, rounds))
            self._put_unseen(read, wanted)
        except Exception:
            if course is not None and before is not None:
                course.load_state_dict(before)
            raise
        with telling_others(self._communicator):
            self._put(read, wanted)
        self._communicator.exchange("checkpoint loaded", "")
        return found[0].given, read.engine, read.rounds

    def _together(self, what: str, own: Callable[[], str]) -> list[str]:
        return together(self._communicator, what, own)

    def _own(self, rounds: Rounds | None) -> dict[str, Any]:
        """What differs by rank, as a file holds it."""
        optimizer, course = self._update.optimizer, self._update.lr_scheduler
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        if course is not None and not hasattr(course, "state_dict"):
            raise ConfigError(
                f"lr_scheduler is a {type(course).__name__} without state_dict(): a checkpoint "
                f"cannot hold it"
            )
        scheduler = None
        if course is not None:
            scheduler = {"type": type(course).__name__, "state": _state_of(course)}
        buffers = self._model.named_buffers(remove_duplicate=False)
        plain: dict[str, Any] = to_plain(
            {
                "random": _random.take(),
                "data": None if rounds is None else rounds.place(),
                "buffers": {name: each.detach().clone() for name, each in buffers},
                "param_groups": groups,
                "lr_scheduler": scheduler,
            },
            "state",
        )
        return plain

    def _common(
        self, counters: Mapping[str, int], client_state: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What is the same on all ranks, as a file holds it."""
        return {
            "layout": self._layout,
            "counters": {
                **counters,
                "skipped_steps": self._update.skipped_steps,
                "forwards": max((each.forwards for each in self._stages.values()), default=0),
            },
            "samples": self._samples,
            "optimizer": type(self._update.optimizer).__name__,
            "loss_scale": self._update.scale.state(),
            "client_state": to_plain(dict(client_state or {}), "client_state"),
        }

    def _write(self, draft: Draft, small: Mapping[str, Any]) -> Exception | None:
        """Collective over replicas, whatever fails here; that is returned."""
        failure: Exception | None = None

        def attempt(write: Callable[[], None]) -> None:
            nonlocal failure
            try:
                if failure is None:
                    write()
            except Exception as error:
                failure = error

        for layer, state in self._weights.gathered():
            if self._replica == 0:
                attempt(partial(_write_layer, draft, layer, state))
        if self._replica == 0 or self._is_sharded:
            name = f"optim_states-{self._place}.pt"
            attempt(lambda: draft.write(name, to_plain(self._states.take(), "optimizer state")))
        for each, values in small.items():
            attempt(partial(draft.write, each, values))
        return failure

    def _read(
        self,
        saved: Saved,
        shapes: Mapping[str, Mapping[str, Any]],
        wanted: Wanted,
        read: _Read,
    ) -> str:
        """All that this rank needs; changes nothing."""
        read.engine = from_plain(saved.read(_ENGINE))
        read.is_of_this_layout = read.engine["layout"] == self._layout
        for name, of_file in shapes.items():
            state = saved.read(name, is_mapped=True)
            read.weights[name] = self._weights.check(name, state, of_file, strict=wanted.strict)
        if wanted.module_only:
            return ""
        read.rank = self._read_rank(saved, is_own=read.is_of_this_layout)
        if wanted.optimizer:
            self._read_updates(saved, read)
        return ""

    def _read_rank(self, saved: Saved, *, is_own: bool) -> dict[str, Any]:
        """Of this rank, or, in another layout, of all ranks, which have the same."""
        if is_own:
            own: dict[str, Any] = from_plain(saved.read(f"rank_states-{self._place}.pt"))
            return own
        names = sorted(name for name in saved.files if name.startswith("rank_states-"))
        found = [from_plain(saved.read(name)) for name in names]
        for name, each in zip(names, found, strict=True):
            for key in ("param_groups", "lr_scheduler"):
                if not _equal(each[key], found[0][key]):
                    raise ConfigError(
                        f"{saved.folder}: {key} differs by rank ({names[0]} and {name}), so that "
                        f"it goes on only with the stages, replicas and schedule that saved it"
                    )
        return {key: found[0][key] for key in ("param_groups", "lr_scheduler", "data")}

    def _read_updates(self, saved: Saved, read: _Read) -> None:
        optimizer = self._update.optimizer
        groups = len(optimizer.param_groups)
        for what, has, needs in [
            ("an optimizer", read.engine["optimizer"], type(optimizer).__name__),
            ("param_groups", len(read.rank["param_groups"]), groups),
        ]:
            if has != needs:
                raise ConfigError(
                    f"{saved.folder} has {what}: {has}, and this engine has {needs}: make the one "
                    f"that was saved, or say load_optimizer_states=False"
                )
        needed = self._states.names()
        for file in sorted(name for name in saved.files if name.startswith("optim_states-")):
            for name, piece in from_plain(saved.read(file, is_mapped=True)).items():
                pieces = read.pieces.setdefault(name, [])
                if name in needed and all(piece["first"] != each["first"] for each in pieces):
                    pieces.append(piece)
        self._states.check(read.pieces, saved.folder)

    def _go_on(self, read: _Read, course: Any, rounds: Rounds | None) -> str:
        """The course of the learning rate, which can be undone, and the data, beside the old."""
        saved = read.rank.get("lr_scheduler")
        if course is not None and saved is not None:
            if saved["type"] != type(course).__name__:
                raise ConfigError(
                    f"the checkpoint has lr_scheduler {saved['type']}, and this engine has "
                    f"{type(course).__name__}: make the one that was saved, or say "
                    f"load_lr_scheduler_states=False"
                )
            course.load_state_dict(saved["state"])
        place = read.rank.get("data")
        if rounds is not None and place is not None:
            if not read.is_of_this_layout:
                place = self._place_of_other(place, read.engine["samples"])
            read.rounds = rounds.at(place)
        return ""

    def _place_of_other(self, place: Mapping[str, Any], samples: int) -> dict[str, Any]:
        """As many samples into the round, where replicas or microbatches are others."""
        taken, rest = divmod(place["taken"] * samples, self._samples)
        if rest:
            _log.warning(
                "the data goes on %d samples before the checkpoint's place: microbatches are of %d "
                "samples, and were of %d",
                rest,
                self._samples,
                samples,
            )
        return {"round": place["round"], "taken": taken, "start": {}, "generators": []}

    def _put_unseen(self, read: _Read, wanted: Wanted) -> None:
        with telling_others(self._communicator):
            before, failure = self._weights.put_unseen(read.weights, strict=wanted.strict)

        def fits() -> str:
            if failure is not None:
                raise failure
            return ""

        try:
            self._together("weights fit", fits)
        except Exception:
            with telling_others(self._communicator):
                self._weights.put_back(before)
            raise

    def _put(self, read: _Read, wanted: Wanted) -> None:
        """Collective.  All that is read fits."""
        self._weights.put(read.weights, strict=wanted.strict)
        if wanted.module_only:
            return
        update, counters = self._update, read.engine["counters"]
        update.skipped_steps = counters["skipped_steps"]
        for stage in self._stages.values():
            stage.forwards = counters["forwards"]
        if wanted.optimizer:
            update.take_masters(lambda: self._states.put(read.pieces))
            for group, saved in zip(
                update.optimizer.param_groups, read.rank["param_groups"], strict=True
            ):
                group.update(copy.deepcopy(saved))
            if scale := read.engine["loss_scale"]:
                update.scale.go_on_from(**scale)
        if read.rounds is not None:
            read.rounds.settle()
        if read.is_of_this_layout:
            self._put_buffers(read.rank["buffers"])
            _random.put(read.rank["random"])

    def _put_buffers(self, saved: Mapping[str, torch.Tensor]) -> None:
        """This replica's own, those that no state_dict() has, too."""
        for name, buffer in self._model.named_buffers(remove_duplicate=False):
            if name in saved and saved[name].shape == buffer.shape:
                buffer.copy_(saved[name])
            elif name in saved:
                path, _, last = name.rpartition(".")
                value = saved[name].to(buffer.device, buffer.dtype, copy=True)
                self._model.get_submodule(path)._buffers[last] = value


def latest(directory: Path) -> str | None:
    """The tag of the last checkpoint that all ranks have written; None where there is none."""
    path = directory / _LATEST
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _write_layer(draft: Draft, name: str, state: dict[str, Any]) -> None:
    draft.write(name, Weights.plain(name, state))


def _check_tag(tag: str) -> None:
    if not tag or tag == _LATEST or tag in (".", "..") or "/" in tag or tag.startswith("."):
        raise ConfigError(
            f'tag is {tag!r}, must be the name of a folder that is not "{_LATEST}" and has no "." '
            f"in front"
        )


def _state_of(course: Any) -> dict[str, Any]:
    found: dict[str, Any] = course.state_dict() if hasattr(course, "state_dict") else {}
    return found


def _equal(one: Any, other: Any) -> bool:
    """Whether values are, tensors in them too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
