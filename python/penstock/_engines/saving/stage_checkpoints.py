"""save() and load(): stages, or any modules, with any optimizers of torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from penstock import _torch
from penstock._calls import for_all_ranks
from penstock._compatibility import published_as
from penstock._engines.ranks.agreement import together
from penstock._engines.ranks.process_groups import connect, resolve
from penstock._engines.saving.parameter_groups import SavedGroup, SavedGroups
from penstock._engines.saving.pieces import WEIGHT, is_by_element
from penstock._engines.saving.saved_checkpoint import (
    Values,
    agree_on_checkpoint,
    check_names,
    open_checkpoint,
    states_in,
    value_pieces,
)
from penstock._engines.saving.saved_values import to_text
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from penstock._runtime import SavedCheckpoint, StatePiece

__all__ = ["Loaded", "load", "save"]

_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)")
_GROUPS = "parameter groups of rank "


@dataclass(frozen=True)
class Loaded:
    """step, values: as save() was given them."""

    step: int
    values: dict[str, Any]


@for_all_ranks("penstock.checkpoint", name="penstock.checkpoint.save()")
def save(
    folder: str | Path,
    stages: Any,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    *,
    step: int = 0,
    values: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
) -> Path:
    """Collective over the group: writes the checkpoint `folder`, in the place of what it was.

    folder: the same on all ranks; it is there as a whole or not at all.
    stages: this rank's: a PipelineStage, a module, or several; or a dict of them by prefix.  A
        parameter is called as in its module, behind its prefix: "layers.3.weight".  That must be
        its name in the whole model.  Ranks that have the same name have the same values, and one
        of them saves it; of a DTensor, each its shard.
    optimizers: one or several, of parameters of these stages; with parameter groups as they are.
    values: of rank 0: schedulers' state_dict() and such, which load() returns.
    group: the ranks; None: all.

    Raises ConfigError and CheckpointError for what cannot be saved, and CommError on other ranks.
    """
    communicator = connect(resolve(group))
    path = Path(folder).absolute()
    held: list[_Held] = []
    given: dict[str, Any] = {}
    texts: dict[str, str] = {}
    pieces: list[StatePiece] = []

    def collect() -> str:
        held.extend(_held(stages))
        of_optimizers = _Optimizers(held, optimizers)
        given.update(of_optimizers.pieces(pieces))
        given[f"{_GROUPS}{communicator.rank}"] = of_optimizers.groups()
        if communicator.rank == 0:
            given["values"] = dict(values or {})
        keys = [[each.name, each.state, each.first, each.values.nbytes] for each in pieces]
        return json.dumps([str(path), step, sorted({(h.name, h.stage) for h in held}), keys])

    told = [json.loads(each) for each in together(communicator, "save", collect)]
    saved: list[StatePiece] = []

    def choose() -> str:
        _check_alike("save", told)
        owners = _owners([each[3] for each in told])
        for piece in pieces:
            if owners.get((piece.name, piece.state, piece.first)) == communicator.rank:
                saved.append(piece)
        for key, value in given.items():
            name = key.removeprefix("states of ")
            if name == key or owners.get((name, WEIGHT, 0)) == communicator.rank:
                texts[key], tensors = to_text(value, key)
                saved.extend(value_pieces(key, tensors))
        return ""

    together(communicator, "what is saved", choose)
    written = _torch.load().save_checkpoint(
        communicator,
        str(path.parent),
        name=path.name,
        step=step,
        facts={"mesh": f"{communicator.world_size} ranks"},
        values=texts,
        pieces=saved,
    )
    return Path(written)


@for_all_ranks("penstock.checkpoint", name="penstock.checkpoint.load()")
def load(
    folder: str | Path,
    stages: Any,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    *,
    strict: bool = True,
    group: ProcessGroup | None = None,
) -> Loaded:
    """Collective over the group: sets stages and optimizers to what a checkpoint has.

    Of any layout, and of any writer: save(), an engine, `penstock train`, an import.
    strict: all weights of the stages are there, and all that is there is of some rank's stages.

    Raises ConfigError and CheckpointError for what does not fit or is damaged, and CommError on
    other ranks; then nothing is changed.
    """
    communicator = connect(resolve(group))
    found: list[tuple[SavedCheckpoint, list[_Held], _Optimizers]] = []

    def find() -> str:
        saved, held = open_checkpoint(Path(folder)), list(_held(stages))
        found.append((saved, held, _Optimizers(held, optimizers)))
        return json.dumps([each.name for each in held])

    told = [json.loads(each) for each in together(communicator, "load", find)]
    saved, held, of_optimizers = found[0]
    agree_on_checkpoint(communicator, saved, "all of it" if strict else "what is there")
    known = {name for each in told for name in each}
    here = {name for name, states in states_in(saved).items() if WEIGHT in states}
    given: dict[str, Any] = {}

    def check() -> str:
        values = Values(saved)
        given.update(values.read("values") if "values" in values else {})
        if strict:
            missing = (each.name for each in held if each.name not in here)
            check_names(saved, missing, here - known)
        for each in held:
            if each.name in here:
                saved.verify(each.weight())
        of_optimizers.read(saved, strict=strict)
        return ""

    together(communicator, "checkpoint read", check)
    for each in held:
        if each.name in here:
            saved.read(each.weight())
    of_optimizers.put()
    communicator.exchange("checkpoint loaded", "")
    return Loaded(saved.step, given)


@dataclass(frozen=True)
class _Held:
    """A parameter or buffer of this rank.  first: of its elements, flat; values: here, flat."""

    name: str
    stage: int
    tensor: torch.Tensor
    first: int
    shape: list[int]

    @property
    def values(self) -> torch.Tensor:
        return _local(self.tensor)

    def piece(self, state: str, values: torch.Tensor) -> StatePiece:
        """A piece as this tensor's, if it has its form; else one for all of its elements."""
        made: type[StatePiece] = _torch.load().StatePiece
        if values.shape == self.values.shape:
            return made(self.name, state, self.shape, values, first=self.first, is_slice=True)
        return made(self.name, state, list(values.shape), values, is_slice=True)

    def weight(self) -> StatePiece:
        """The weight, to be saved or set."""
        return self.piece(WEIGHT, self.values)


class _Optimizers:
    """The optimizers of a rank, whose parameters have names."""

    def __init__(
        self,
        held: Sequence[_Held],
        optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    ) -> None:
        is_one = isinstance(optimizers, torch.optim.Optimizer)
        self._optimizers: list[torch.optim.Optimizer] = (
            [optimizers] if is_one else list(optimizers)  # type: ignore[list-item,arg-type]
        )
        self._held = held
        self._by_id = {id(each.tensor): each for each in held}
        self._new: list[tuple[torch.optim.Optimizer, torch.Tensor, dict[str, Any]]] = []
        self._options: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for optimizer in self._optimizers:
            for each in optimizer.param_groups:
                for parameter in each["params"]:
                    if id(parameter) not in self._by_id:
                        raise ConfigError(
                            f"an optimizer ({type(optimizer).__name__}) has a parameter of shape "
                            f"{tuple(parameter.shape)} that is in no stage of this rank"
                        )

    def pieces(self, pieces: list[StatePiece]) -> dict[str, Any]:
        """Adds weights and states; returns states that are no tensors, as values."""
        others: dict[str, Any] = {}
        states: dict[int, dict[str, Any]] = {}
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                states[id(parameter)] = state
        for each in self._held:
            if each.values.numel() == 0:
                continue
            pieces.append(each.weight())
            for key, value in states.get(id(each.tensor), {}).items():
                if isinstance(value, torch.Tensor):
                    pieces.append(each.piece(key, _local(value)))
                else:
                    others.setdefault(f"states of {each.name}", {})[key] = value
        return others

    def groups(self) -> list[Any]:
        """The parameters' names and the options of each parameter group."""
        return [
            [
                [self._by_id[id(each)].name for each in group["params"]],
                {key: value for key, value in group.items() if key != "params"},
            ]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]

    def read(self, saved: SavedCheckpoint, *, strict: bool) -> None:
        """States and options, beside those that there are."""
        tensors = states_in(saved)
        values = Values(saved)
        of_ranks = (values.read(key) for key in values.texts if key.startswith(_GROUPS))
        saved_groups = [
            SavedGroup(names, options, place)
            for of_rank in of_ranks
            for place, (names, options) in enumerate(of_rank)
        ]
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        wanted = [[self._by_id[id(each)].name for each in group["params"]] for group in groups]
        in_them = SavedGroups(saved.folder, saved_groups).of(wanted, strict=strict)
        for group, found in zip(groups, in_them, strict=True):
            if found is not None:
                self._options.append((group, dict(found.options)))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    held = self._by_id[id(parameter)]
                    states = self._states(saved, values, held, tensors.get(held.name, {}))
                    self._new.append((optimizer, parameter, states))

    def put(self) -> None:
        """What was read."""
        for optimizer, parameter, states in self._new:
            optimizer.state.pop(parameter, None)
            if states:
                optimizer.state[parameter] = states
        for group, options in self._options:
            group.update(options)

    @staticmethod
    def _states(
        saved: SavedCheckpoint,
        values: Values,
        held: _Held,
        has: Mapping[str, tuple[torch.dtype, list[int]]],
    ) -> dict[str, Any]:
        key = f"states of {held.name}"
        states: dict[str, Any] = dict(values.read(key)) if key in values else {}
        for state, (dtype, shape) in has.items():
            if state == WEIGHT:
                continue
            by_element = is_by_element(state, shape, held.shape)
            form = held.values.shape if by_element else torch.Size(shape)
            device = held.values.device if form else torch.device("cpu")
            local = torch.empty(form, dtype=dtype, device=device)
            if local.numel() > 0:
                saved.read(held.piece(state, local))
            states[state] = _as(held.tensor, local) if by_element else local
        return states


def _held(stages: Any) -> Iterator[_Held]:
    """The parameters of modules, PipelineStages, or dicts of them by prefix."""
    if isinstance(stages, Mapping):
        named = list(stages.items())
    else:
        several = stages if isinstance(stages, list | tuple) else [stages]
        named = [("", each) for each in several]
    seen: dict[str, int] = {}
    for number, (prefix, each) in enumerate(named):
        module = each if isinstance(each, torch.nn.Module) else each.submod
        index = getattr(each, "stage_index", -1)
        if isinstance(module, DistributedDataParallel):
            module = module.module
        for path, inner in module.named_modules():
            tensors = {
                **{key: value for key, value in inner._parameters.items() if value is not None},
                **{
                    key: value
                    for key, value in inner._buffers.items()
                    if value is not None and key not in inner._non_persistent_buffers_set
                },
            }
            for key, tensor in tensors.items():
                name = _WRAPPERS.sub(r"", f"{prefix}{path}.{key}" if path else prefix + key)
                name = name.removeprefix(".")
                if seen.setdefault(name, number) != number:
                    raise ConfigError(_SAME_NAME.format(name, "two stages of this rank have"))
                yield _make_held(name, index, tensor)


_SAME_NAME = (
    '{1} a tensor called "{0}": names must be those in the whole model; give the stages as a dict '
    'by prefix, {{"stage0.": stage}} for example'
)


def _make_held(name: str, stage: int, tensor: torch.Tensor) -> _Held:
    shape = list(tensor.shape)
    if not isinstance(tensor, DTensor):
        return _Held(name, stage, tensor, 0, shape)
    local, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if list(local)[1:] != shape[1:]:
        raise ConfigError(f"{name} is sharded along another dimension than its first")
    row = tensor.numel() // shape[0] if shape and shape[0] else 0
    return _Held(name, stage, tensor, (offsets[0] if offsets else 0) * row, shape)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def _as(like: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Brings values into the form of a parameter: a DTensor of the same place, or as they are."""
    if not isinstance(like, DTensor):
        return local
    return DTensor.from_local(
        local, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )


def _check_alike(what: str, told: Sequence[Any]) -> None:
    """Raises ConfigError where ranks save to other folders, or one name is in two stages."""
    for rank, each in enumerate(told):
        if each[:2] != told[0][:2]:
            raise ConfigError(
                f"{what}: rank 0 has {told[0][0]}, step {told[0][1]}, and rank {rank} {each[0]}, "
                f"step {each[1]}"
            )
    stage_of: dict[str, int] = {}
    for each in told:
        for name, stage in each[2]:
            if stage_of.setdefault(name, stage) != stage:
                both = f"stages {stage_of[name]} and {stage} have"
                raise ConfigError(_SAME_NAME.format(name, both))


def _owners(told: Sequence[Sequence[Any]]) -> dict[tuple[str, str, int], int]:
    """The rank that saves each piece: of those that have it, the one with the fewest bytes."""
    having: dict[tuple[str, str, int], tuple[int, list[int]]] = {}
    for rank, pieces in enumerate(told):
        for name, state, first, size in pieces:
            having.setdefault((name, state, first), (size, []))[1].append(rank)
    load = [0] * len(told)
    owners = {}
    for key, (size, ranks) in having.items():
        owners[key] = min(ranks, key=lambda rank: load[rank])
        load[owners[key]] += size
    return owners


published_as("penstock.checkpoint", globals())
