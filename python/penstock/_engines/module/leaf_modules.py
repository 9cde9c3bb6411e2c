"""Marks on modules that DeepSpeed fetches as a whole.

They change nothing here: an operator brings what it reads, in whatever order experts run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import published_as
from penstock._engines.settings.leaf_module_section import DeepSpeedZeroLeafModuleConfig

__all__ = [
    "get_z3_leaf_modules",
    "mark_configured",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
    "z3_leaf_parameter",
]

_Modules = list[torch.nn.Module]


def z3_leaf_module(model: torch.nn.Module) -> bool:
    """Whether a module is marked."""
    return bool(getattr(model, "_z3_leaf", False))


def z3_leaf_parameter(model: torch.nn.Parameter) -> bool:
    """False: parameters have no mark."""
    del model
    return False


def get_z3_leaf_modules(model: torch.nn.Module) -> _Modules:
    """The marked modules, of all in it."""
    return [each for each in model.modules() if z3_leaf_module(each)]


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks a module, or takes its mark."""
    model._z3_leaf = flag  # type: ignore[assignment]


def set_z3_leaf_modules(
    model: torch.nn.Module,
    leaf_module_classes: Sequence[type | str],
    raise_if_not_found: bool = True,
) -> _Modules:
    """Marks all of these classes, or of classes of these names; returns them.

    Raises ValueError where there is none, unless raise_if_not_found is False.
    """
    return _set_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: torch.nn.Module,
    leaf_module_classes: Sequence[type | str],
    raise_if_not_found: bool = True,
) -> _Modules:
    """Takes these marks."""
    return _set_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: torch.nn.Module, module_names: Sequence[str], raise_if_not_found: bool = True
) -> tuple[_Modules, list[str]]:
    """Marks modules by their names in the model; returns them, and the names that none has."""
    return _set_names(model, module_names, raise_if_not_found, lambda name, word: name == word)


def set_z3_leaf_modules_by_suffix(
    model: torch.nn.Module, module_name_suffixes: Sequence[str], raise_if_not_found: bool = True
) -> tuple[_Modules, list[str]]:
    """Marks modules whose names end like this; returns them, and the ends that none has."""
    return _set_names(
        model, module_name_suffixes, raise_if_not_found, lambda name, word: name.endswith(word)
    )


def mark_configured(model: torch.nn.Module, section: Mapping[str, Any]) -> None:
    """Marks what zero_optimization.leaf_module says; what the model lacks is passed over."""
    if section:
        said = DeepSpeedZeroLeafModuleConfig(**section)
        set_z3_leaf_modules(model, said.classes, raise_if_not_found=False)
        set_z3_leaf_modules_by_name(model, said.names, raise_if_not_found=False)
        set_z3_leaf_modules_by_suffix(model, said.name_suffixes, raise_if_not_found=False)


def _set_classes(
    model: torch.nn.Module, classes: Sequence[type | str], flag: bool, must_be: bool
) -> _Modules:
    for each in classes:
        if not isinstance(each, type | str):
            raise TypeError(f"{each!r} is neither a class nor the name of one")

    def is_meant(module: torch.nn.Module) -> bool:
        kind = type(module)
        names = (kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}")
        return any(
            each in names if isinstance(each, str) else isinstance(module, each) for each in classes
        )

    found = [each for each in model.modules() if is_meant(each)]
    return _mark(found, flag, must_be, f"of class {classes}")


def _set_names(
    model: torch.nn.Module,
    words: Sequence[str],
    must_be: bool,
    fits: Callable[[str, str], bool],
) -> tuple[_Modules, list[str]]:
    named = dict(model.named_modules())
    found = [each for name, each in named.items() if any(fits(name, word) for word in words)]
    missing = [word for word in words if not any(fits(name, word) for name in named)]
    return _mark(found, True, must_be, f"of name {words}"), missing


def _mark(found: _Modules, flag: bool, must_be: bool, what: str) -> _Modules:
    if must_be and not found:
        raise ValueError(f"the model has no module {what}")
    for each in found:
        set_z3_leaf_module(each, flag)
    return found


published_as("penstock.utils", globals())
