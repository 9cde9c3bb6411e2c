"""What of another system's checkpoint becomes one of penstock's, and its writing.

Knows no other system.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _torch
from penstock._engines.saving.pieces import WEIGHT
from penstock._engines.saving.saved_checkpoint import own_key, value_pieces
from penstock._engines.saving.saved_values import to_text
from penstock._foreign_files import open_foreign
from penstock.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from penstock._runtime import Communicator, StatePiece

__all__ = ["Imported", "load_plain"]

_OPTIONS = {
    *("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov"),
    *("amsgrad", "maximize", "alpha", "centered", "lambd", "lr_decay", "rho", "t0"),
}


@dataclass
class Imported:
    """A whole run.

    weights: by name; masters, where there are any.  states: by parameter, what its optimizer keeps.
    texts: values of `penstock train`.  shared: names of parameters that are others.
    left_out: what is not taken over, for people.
    """

    step: int
    source: str
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    client_state: dict[str, Any] = field(default_factory=dict)
    param_groups: list[dict[str, Any]] | None = None
    group_names: Sequence[Sequence[str]] | None = None
    lr_scheduler: dict[str, Any] | None = None
    shared: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def set_groups(
        self, groups: Iterable[Mapping[str, Any]], names: Sequence[Sequence[str]] | None = None
    ) -> None:
        """The options of an optimizer's groups, as far as torch knows them.

        names: of each group's parameters; None, and what the weights do not have: nobody knows.
        """
        is_known = names and all(name in self.weights for each in names for name in each)
        self.group_names = names if is_known else None
        self.param_groups = [
            {key: value for key, value in group.items() if key in _OPTIONS} for group in groups
        ]

    def save(self, folder: Path) -> None:
        """Raises CheckpointError where the folder cannot be written."""
        pieces = [piece for name, each in self.weights.items() for piece in _piece(name, each)]
        for name, states in self.states.items():
            if name not in self.weights:
                raise CheckpointError(
                    f"{self.source} has optimizer states of {name}, and no weight"
                )
            for key, value in states.items():
                tensor = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
                pieces += _piece(name, tensor, key)
        own: dict[str, Any] = {}
        if self.param_groups is not None:
            own = {"param_groups": self.param_groups, "lr_scheduler": self.lr_scheduler}
            if self.group_names and len(self.group_names) == len(self.param_groups):
                own["group_names"] = [list(each) for each in self.group_names]
        values = {
            "engine": {
                "layout": {"source": self.source},
                "counters": {"steps": self.step, **self.counters},
                "shared": self.shared,
            },
            "client_state": self._client_state(),
            **({own_key(0, 0): own} if own else {}),
        }
        texts = dict(self.texts)
        for key, value in values.items():
            texts[key], tensors = to_text(value, key)
            pieces += value_pieces(key, tensors)
        runtime = _torch.load()
        made: type[Communicator] = runtime.Communicator
        distributed: Any = torch.distributed
        alone = made(distributed.HashStore(), 0, 1, "", 60.0, torch.device("cpu"))
        runtime.save_checkpoint(
            alone,
            str(folder.parent),
            name=folder.name,
            step=self.step,
            facts={"imported from": self.source},
            values=texts,
            pieces=pieces,
        )

    def _client_state(self) -> dict[str, Any]:
        """What of it can be saved."""
        kept = {}
        for key, value in self.client_state.items():
            try:
                to_text(value, f"client_state[{key!r}]")
                kept[key] = value
            except ConfigError as error:
                self.left_out.append(str(error.message))
        return kept


def _piece(name: str, tensor: torch.Tensor, state: str = WEIGHT) -> list[StatePiece]:
    made: type[StatePiece] = _torch.load().StatePiece
    return [made(name, state, list(tensor.shape), tensor)] if tensor.numel() else []


class _StandIn:
    """What a class of another system has saved: its attributes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = arguments
        self.__dict__.update(named)


def load_plain(path: Path, package: str) -> Any:
    """A file of torch.save(), of which nothing is run.

    Classes of the other system's package come as their attributes.

    Raises CheckpointError for a file that cannot be read, or asks for anything else.
    """
    try:
        open_foreign(path, CheckpointError).close()
        wanted = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        foreign = [each for each in wanted if not each.startswith(package + ".")]
        if foreign:
            raise CheckpointError(f"{path} asks for {', '.join(foreign)}, which is not loaded")
        stand_ins: Any = [(type("StandIn", (_StandIn,), {}), each) for each in wanted]
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except CheckpointError:
        raise
    except Exception as error:  # There are as many kinds as a file can be broken.
        raise CheckpointError(f"{path} cannot be read: {error}") from error
