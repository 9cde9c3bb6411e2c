"""The tensors of a model and its optimizer that a rank saves, under names that no layout changes.

A parameter is called as in its layer's state_dict(), behind the layer's prefix; what an optimizer
keeps of it has the optimizer's words.  Knows no files and no other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock import _torch
from penstock._engines.saving.saved_checkpoint import states_in
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._engines.update.update import Update
    from penstock._runtime import OwnedElements, SavedCheckpoint, StatePiece

__all__ = ["WEIGHT", "Pieces", "Read", "is_by_element"]

WEIGHT = "weight"
_RESERVED = (WEIGHT, "value")
# States of torch's optimizers that are one number for all elements, and so of a parameter of no
# dimensions, whose other states have its form.
_OF_ALL_ELEMENTS = {"eta", "mu", "mu_product", "step"}


@dataclass(frozen=True)
class _Part:
    """A parameter's elements on this rank.

    names: its own by layer, and whether this rank writes it.  master: what the optimizer updates;
    None: it does not.
    """

    kept: OwnedElements
    names: list[tuple[str, bool]]
    is_trained: bool
    master: torch.Tensor | None

    @property
    def values(self) -> torch.Tensor:
        return self.kept.values if self.master is None else self.master


class Read:
    """What a rank reads of a checkpoint: pieces, and the optimizer's states that come of them."""

    def __init__(self) -> None:
        self.pieces: list[StatePiece] = []
        self.states: dict[torch.Tensor, list[tuple[str, Callable[[], StatePiece]]]] = {}


class Pieces:
    """The pieces of a model whose parameters are over replicas.

    modules: by prefix, "3." for example, those of this rank; written: prefixes of those that it
        writes, or a replica of it.
    names: what replicas call a parameter, by its id.
    kept: what replicas have of parameters, and `parts`: the number of each part's parameter.
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        written: frozenset[str],
        names: Mapping[int, str],
        kept: Callable[[], Sequence[OwnedElements]],
        parts: Callable[[], Sequence[tuple[int, int, torch.Tensor]]],
        update: Update,
        *,
        is_first_replica: bool,
    ) -> None:
        self.modules = modules
        self.written = written
        self._kept = kept
        self._parts_held = parts
        self._update = update
        self._known = names
        self._is_first_replica = is_first_replica
        self._names: dict[str, list[tuple[str, bool]]] = {}
        self._trained: set[str] = set()
        for prefix, module in modules.items():
            for name, parameter in module.named_parameters():
                known = names[id(parameter)]
                self._names.setdefault(known, []).append((prefix + name, prefix in written))
                if parameter.requires_grad:
                    self._trained.add(known)

    def of_parameters(self, *, with_frozen: bool = True) -> list[StatePiece]:
        """Weights, and tensors that the optimizer keeps of them."""
        found = []
        for part in self._parts():
            for name, is_written in part.names:
                if with_frozen or part.is_trained:
                    found.append(_piece(part, name, WEIGHT, part.values, is_written))
                found += [
                    _piece(part, name, key, value, is_written)
                    for key, value in self._states(part)
                    if isinstance(value, torch.Tensor)
                ]
        return found

    def other_states(self) -> dict[str, dict[str, Any]]:
        """What the optimizer keeps of each parameter besides tensors, if this rank writes it."""
        found = {}
        for part in self._parts():
            is_one = part.kept.is_slice or self._is_first_replica
            others = {
                key: value
                for key, value in self._states(part)
                if not isinstance(value, torch.Tensor)
            }
            if part.kept.is_slice and (wrong := [k for k in others if _has_tensors(others[k])]):
                raise ConfigError(
                    f"optimizer {type(self._update.optimizer).__name__} keeps "
                    f"{', '.join(wrong)} of {part.names[0][0]}, tensors in a "
                    f"container, of a slice: a checkpoint cannot put them together"
                )
            for name, is_written in part.names:
                if others and is_written and is_one and part.kept.first == 0:
                    found[name] = others
        return found

    def of_buffers(self) -> list[StatePiece]:
        """The buffers that a state_dict() has, of the first replica."""
        made: type[StatePiece] = _torch.load().StatePiece
        return [
            made(
                name,
                WEIGHT,
                list(buffer.shape),
                buffer,
                is_slice=True,  # No other replica saves its own under this name.
                is_saved_here=self._is_first_replica and is_written,
            )
            for name, buffer, is_written in self._persistent()
        ]

    def names(self) -> set[str]:
        """The names of all weights here."""
        known = {name for names in self._names.values() for name, _ in names}
        return known | {name for name, *_ in self._persistent()}

    def group_names(self) -> list[list[str]]:
        """The names of the parameters here, by parameter group of the optimizer."""
        return [
            [
                name
                for each in group
                for name, _ in self._names.get(self._known.get(id(each), ""), [])
            ]
            for group in self._update.group_parameters
        ]

    def shared(self) -> dict[str, str]:
        """Other names of parameters here, and those that they are saved under."""
        found = {}
        for prefix, module in self.modules.items():
            first: dict[int, str] = {}
            for name, parameter in module.named_parameters(remove_duplicate=False):
                if first.setdefault(id(parameter), name) != name:
                    found[prefix + name] = prefix + first[id(parameter)]
        return found

    def frozen(self) -> list[str]:
        """Names of parameters here that nobody trains."""
        return [
            name
            for known, names in self._names.items()
            if known not in self._trained
            for name, _ in names
        ]

    def reading(self, saved: SavedCheckpoint, *, optimizer: bool) -> Read:
        """All that this rank reads.  Raises CheckpointError where the checkpoint does not fit."""
        tensors = states_in(saved)
        read = Read()
        for part in self._parts():
            name = next((name for name, _ in part.names if name in tensors), part.names[0][0])
            has = tensors.get(name, {})
            read.pieces.append(_piece(part, name, WEIGHT, part.values, is_saved_here=False))
            if optimizer and part.master is not None:
                read.states[part.master] = [
                    (state, _new_state(part, name, state, *has[state]))
                    for state in has
                    if state != WEIGHT
                ]
        read.pieces += self.of_buffers()
        return read

    def put(
        self, saved: SavedCheckpoint, read: Read, others: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Sets what was read.  others: as other_states() gave them."""
        for piece in read.pieces:
            saved.read(piece)
        optimizer = self._update.optimizer
        for part in self._parts():
            if part.master is None or part.master not in read.states:
                continue
            optimizer.state.pop(part.master, None)
            states = dict(others.get(part.names[0][0], {}))
            for state, make in read.states[part.master]:
                piece = make()
                saved.read(piece)
                states[state] = piece.values
            if states:
                optimizer.state[part.master] = states
                self._update.keep(part.master)

    def _parts(self) -> Iterator[_Part]:
        updated, masters = set(self._update.updated), iter(self._update.masters)
        master_of = [
            next(masters) if number in updated else None for number, _, _ in self._parts_held()
        ]
        for kept in self._kept():
            if kept.name in self._names and kept.values.numel() > 0:
                yield _Part(
                    kept,
                    self._names[kept.name],
                    kept.name in self._trained,
                    None if kept.part is None else master_of[kept.part],
                )

    def _states(self, part: _Part) -> Iterator[tuple[str, Any]]:
        states = {} if part.master is None else self._update.optimizer.state.get(part.master, {})
        for key, value in states.items():
            if key in _RESERVED:
                raise ConfigError(
                    f'the optimizer keeps "{key}" of {part.names[0][0]}: a checkpoint has other '
                    f"things under this name"
                )
            yield key, value

    def _persistent(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        for prefix, module in self.modules.items():
            for path, each in module.named_modules():
                for key, buffer in each._buffers.items():
                    if buffer is None or key in each._non_persistent_buffers_set:
                        continue
                    if buffer.numel() > 0:
                        name = f"{prefix}{path}.{key}" if path else prefix + key
                        if buffer.layout is not torch.strided:
                            raise ConfigError(
                                f"the buffer {name} is of {buffer.layout}: a checkpoint holds "
                                f"dense tensors"
                            )
                        yield name, buffer, prefix in self.written


def _piece(
    part: _Part, name: str, state: str, values: torch.Tensor, is_saved_here: bool
) -> StatePiece:
    """A tensor of the part's form has a value for each element; any other is for all of them."""
    kept = part.kept
    made: type[StatePiece] = _torch.load().StatePiece
    if values.shape == part.values.shape:
        return made(
            name,
            state,
            kept.shape,
            values,
            first=kept.first,
            is_slice=kept.is_slice,
            is_saved_here=is_saved_here,
        )
    return made(
        name,
        state,
        list(values.shape),
        values,
        is_slice=kept.is_slice,
        is_saved_here=is_saved_here and kept.first == 0,
    )


def is_by_element(state: str, shape: list[int], of_parameter: list[int]) -> bool:
    """Whether a saved state has a value for each element of its parameter."""
    return shape == of_parameter and (bool(shape) or state not in _OF_ALL_ELEMENTS)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _new_state(
    part: _Part, name: str, state: str, dtype: torch.dtype, shape: list[int]
) -> Callable[[], StatePiece]:
    """What makes a piece to read it into: as the part, or, of another form, as it was."""
    by_element = is_by_element(state, shape, part.kept.shape)
    if by_element and dtype.is_floating_point:
        dtype = part.values.dtype

    def make() -> StatePiece:
        values = part.values
        if by_element:
            new = torch.empty(values.shape, dtype=dtype, device=values.device)
        else:
            new = torch.empty(shape, dtype=dtype)
        return _piece(part, name, state, new, is_saved_here=False)

    return make
