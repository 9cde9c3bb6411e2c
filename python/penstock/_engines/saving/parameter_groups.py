"""Options of an optimizer's parameter groups, found by the names of the groups' parameters.

Groups have no names, and a script may make them in another order, or divide them otherwise, when it
goes on.  So each parameter gets what its group had, whatever place that had.  Knows no optimizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._engines.saving.module_states import equal
from penstock.errors import ConfigError, first_of

__all__ = ["SavedGroup", "SavedGroups", "in_places"]

_REPAIR = (
    "make the groups that were saved, or load without the states of the optimizer and lr_scheduler"
)


@dataclass(frozen=True)
class SavedGroup:
    """names: of its parameters.  place: among the groups of the rank that saved it.

    names are None where the checkpoint does not have them: one of an earlier penstock, or of
    another program.
    """

    names: Sequence[str] | None
    options: Mapping[str, Any]
    place: int


class SavedGroups:
    """The groups of a checkpoint, of one rank or of several.

    folder: for errors.

    Raises ConfigError for a parameter that ranks have saved with different options.
    """

    def __init__(self, folder: str, groups: Iterable[SavedGroup]) -> None:
        self._folder = folder
        self._groups = list(groups)
        self._of: dict[str, SavedGroup] = {}
        for group in self._groups:
            for name in group.names or ():
                known = self._of.setdefault(name, group)
                self._check(name, known, name, group)

    def of(self, names: Sequence[Sequence[str]], *, strict: bool) -> list[SavedGroup | None]:
        """The saved group of each group, found by its parameters' names.

        None where the checkpoint has no groups, or none for a group without parameters, and, if
        that is not strict, for one of parameters that it does not have.
        Raises ConfigError for a group whose parameters were saved with different options, or in no
        group; and where groups can be told by their place alone, for another number of them.
        """
        if not self._groups:
            return [None] * len(names)
        if any(group.names is None for group in self._groups):
            return self._by_place(len(names))
        return [self._of_group(number, each, strict) for number, each in enumerate(names)]

    def _of_group(self, number: int, names: Sequence[str], strict: bool) -> SavedGroup | None:
        known = [name for name in names if name in self._of]
        if not names:
            alike = (each for each in self._groups if each.place == number and not each.names)
            return next(alike, None)
        if not known and not strict:
            return None
        if not known:
            raise ConfigError(
                f"{self._folder}: parameter group {number}, of {first_of(names, 3)}: its "
                f"parameters were saved in no group",
                (_REPAIR,),
            )
        for name in known:
            self._check(known[0], self._of[known[0]], name, self._of[name])
        return self._of[known[0]]

    def _check(self, name: str, group: SavedGroup, other: str, of_other: SavedGroup) -> None:
        if group is of_other or equal(dict(group.options), dict(of_other.options)):
            return
        keys = {**group.options, **of_other.options}
        key = next(k for k in keys if not _same(group.options, of_other.options, k))
        both = f"{group.options.get(key)!r} and {of_other.options.get(key)!r}"
        what = (
            f"parameter {name} was saved with {key} {both}"
            if name == other
            else f"a parameter group has {name} and {other}, which were saved with {key} {both}"
        )
        raise ConfigError(f"{self._folder}: {what}", (_REPAIR,))

    def _by_place(self, count: int) -> list[SavedGroup | None]:
        distinct = {group.place: group for group in self._groups}
        for group in self._groups:
            if not equal(dict(group.options), dict(distinct[group.place].options)):
                raise ConfigError(
                    f"{self._folder}: param_groups differs by rank, and has no names, so that it "
                    f"goes on only with the stages, replicas and schedule that saved it"
                )
        if len(distinct) != count:
            raise ConfigError(
                f"{self._folder} has param_groups: {len(distinct)}, and this engine has {count}: "
                f"make the one that was saved, or say load_optimizer_states=False",
                (_REPAIR,),
            )
        return [distinct[place] for place in sorted(distinct)]


def in_places(state: Any, groups: Sequence[SavedGroup | None], where: str) -> Any:
    """A scheduler's state, with its numbers of each group in the groups' new places.

    Schedulers keep lists with a number for each group, by place.  Where the groups stand as they
    stood, the state is as it was.

    groups: none: their places are not known to be others.

    Raises ConfigError for a list of which it is not known that it goes by groups.
    """
    if not groups:
        return state
    places = [number if group is None else group.place for number, group in enumerate(groups)]
    if places == list(range(len(places))) and not any(
        _has_other_length(each, len(places)) for each in _lists_in(state)
    ):
        return state
    return _moved(state, places, where)


_BY_GROUP = {
    *("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs", "base_momentums"),
    *("max_momentums", "min_lr", "max_lr", "lr_ranges", "moms"),
}


def _lists_in(state: Any) -> Iterable[list[Any]]:
    if isinstance(state, Mapping):
        for key, value in state.items():
            if key in _BY_GROUP and isinstance(value, list):
                yield value
            else:
                yield from _lists_in(value)
    elif isinstance(state, list):
        for each in state:
            yield from _lists_in(each)


def _has_other_length(values: list[Any], groups: int) -> bool:
    return len(values) not in (0, groups)


def _moved(state: Any, places: Sequence[int], where: str) -> Any:
    if isinstance(state, Mapping):
        moved = {}
        for key, value in state.items():
            if key in _BY_GROUP and isinstance(value, list) and value:
                if max(places, default=0) >= len(value):
                    raise ConfigError(
                        f"{where}: lr_scheduler has {key} of {len(value)} groups, and the "
                        f"checkpoint more of them"
                    )
                moved[key] = [value[place] for place in places]
            else:
                moved[key] = _moved(value, places, f"{where}[{key!r}]")
        return moved
    if isinstance(state, list) and any(isinstance(each, Mapping) for each in state):
        return [_moved(each, places, where) for each in state]
    if isinstance(state, list) and len(state) == len(places) > 1:
        raise ConfigError(
            f"{where}: parameter groups stand in other places than when they were saved, and this "
            f"list of the lr_scheduler may go by them",
            ("make the groups in the order in which they were saved",),
        )
    return state


def _same(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    return key in one and key in other and equal(one[key], other[key])
