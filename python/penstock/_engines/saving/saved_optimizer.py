"""What a checkpoint of an engine says of its optimizer, besides tensors, and whether it fits.

Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock._engines.saving.parameter_groups import SavedGroup, SavedGroups
from penstock.errors import CheckpointError, ConfigError

__all__ = [
    "SCALE",
    "SKIPPED",
    "check_kind",
    "check_words",
    "groups_of",
    "scale_in",
    "skipped_in",
]

SKIPPED, SCALE = "skipped steps", "gradient scale"  # Names that `penstock train` has.
_ADAM = ({"step", "exp_avg", "exp_avg_sq"}, {"max_exp_avg_sq"})
_WORDS: dict[str, tuple[set[str], set[str]]] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "SGD": (set(), {"momentum_buffer", "step"}),
}
"""By class, what an optimizer always keeps, and what it may keep."""


def check_kind(folder: str, saved: str, kind: str) -> None:
    """Raises ConfigError for an optimizer of another class."""
    if saved != kind:
        raise ConfigError(
            f"{folder} has an optimizer: {saved}, and this engine has {kind}: make the one that "
            f"was saved, or say load_optimizer_states=False"
        )


def check_words(folder: str, words: Iterable[str], kind: str) -> None:
    """Checks an optimizer whose class the checkpoint does not say.

    Raises ConfigError for states that one of this class does not keep.
    """
    keeps, found = _WORDS.get(kind), set(words)
    if keeps is None or not found or keeps[0] <= found <= keeps[0] | keeps[1]:
        return
    raise ConfigError(
        f"{folder} has optimizer states {', '.join(sorted(found))}, and {kind} "
        f"keeps {', '.join(sorted(keeps[0] | keeps[1]))}: make the optimizer that was saved, "
        f"or say load_optimizer_states=False"
    )


def groups_of(
    folder: str,
    all_own: Iterable[Mapping[str, Any]],
    names: Sequence[Sequence[str]],
    *,
    strict: bool,
) -> list[SavedGroup | None]:
    """The checkpoint's group for each of this engine's groups, by its parameters' names.

    all_own: what ranks have saved of their own.  Raises ConfigError for one that has none.
    """
    saved = []
    for own in all_own:
        options = own.get("param_groups") or []
        of_groups = own.get("group_names") or [None] * len(options)
        pairs = zip(of_groups, options, strict=True)
        saved += [SavedGroup(*each, place) for place, each in enumerate(pairs)]
    return SavedGroups(folder, saved).of(names, strict=strict)


def skipped_in(folder: str, texts: Mapping[str, str]) -> int:
    """Raises CheckpointError for what is no number."""
    return _read(folder, SKIPPED, texts, int) or 0


def scale_in(folder: str, texts: Mapping[str, str]) -> dict[str, Any] | None:
    """What GradientScale.go_on_from() takes; None: the checkpoint has none.

    Raises CheckpointError for what is none.
    """

    def parse(text: str) -> dict[str, Any]:
        value, lives, clean = text.split()
        return {"value": float(value), "lives": int(lives), "clean_steps": int(clean)}

    scale: dict[str, Any] | None = _read(folder, SCALE, texts, parse)
    return scale


def _read(folder: str, key: str, texts: Mapping[str, str], parse: Any) -> Any:
    if key not in texts:
        return None
    try:
        return parse(texts[key])
    except ValueError:
        raise CheckpointError(f"{folder}: {key} is {texts[key]!r}") from None
