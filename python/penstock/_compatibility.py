"""What becomes of the names of torch.distributed.pipelining and DeepSpeed: the one table.

    >>> fate("deepspeed", "init_inference").verdict
    'refused'

compatibility.ini has it.  Modules that stand for theirs raise lacking() for names that they do not
have, by attribute or by import; penstock.swap reads which module stands for which, and
docs/compatibility.md is made of it.
Reads no modules, and imports only those that are asked for as attributes of their package.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

__all__ = [
    "DEEPSPEED",
    "Fate",
    "Module",
    "fate",
    "has_own_row",
    "lacking",
    "member",
    "modules",
    "published_as",
    "refusal",
    "refuse_in",
]

# The version of DeepSpeed whose names and behaviour the table is of.
DEEPSPEED = "0.19.8"

# Classes of theirs that have the members of another one.
_BASES = {
    ("deepspeed.runtime.pipe.engine", "PipelineEngine"): (
        "deepspeed.runtime.engine",
        "DeepSpeedEngine",
    ),
}

_FILE = Path(__file__).with_name("compatibility.ini")


@dataclass(frozen=True)
class Fate:
    """What becomes of a name.  verdict: "works", "differs", "refused" or "unknown".

    note: how it differs, or why it is refused and what to use in its place.
    is_late: it can be imported, so that what mentions it goes on, and is refused when it is called.
    """

    verdict: str
    note: str = ""
    is_late: bool = False


@dataclass(frozen=True)
class Module:
    """A module of theirs.  instead: ours in its place; None: there is none.

    names: what becomes of each; members of a class stand behind it, as in "DeepSpeedEngine.step".
    rest: of all other names.
    """

    instead: str | None
    rest: Fate
    names: Mapping[str, Fate] = field(default_factory=dict)


@lru_cache(maxsize=1)
def modules() -> Mapping[str, Module]:
    """Modules by the name that theirs has there."""
    sections: dict[str, list[str]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            entries = sections.setdefault(line.strip("[]"), [])
        elif line.startswith(" "):
            entries[-1] += f" {line.strip()}"  # Continues the entry above.
        elif line and not line.startswith("#"):
            entries.append(line)
    return {name: _module(entries) for name, entries in sections.items()}


def _module(entries: Iterable[str]) -> Module:
    names: dict[str, Fate] = {}
    rest, instead = Fate("unknown"), None
    for entry in entries:
        key, _, text = entry.partition(" = ")
        verdict, *listed = key.split()
        if verdict == "instead":
            instead = text
        elif verdict == "rest":
            rest = Fate("refused", text)
        elif verdict == "works":
            names.update(dict.fromkeys(text.split(), Fate("works")))
        elif verdict == "late":
            names.update(dict.fromkeys(listed, Fate("refused", text, is_late=True)))
        else:
            names.update(dict.fromkeys(listed, Fate(verdict, text)))
    return Module(instead, rest, names)


def fate(module: str, name: str) -> Fate:
    """The fate of a name in a module of theirs; "unknown" where the table has neither."""
    found = modules().get(module)
    if found is None:
        return Fate("unknown")
    if name in found.names:
        return found.names[name]
    within = modules().get(f"{module}.{name}")
    if within is not None:
        return Fate("works") if within.instead else within.rest
    owner, _, member = name.rpartition(".")
    if owner:  # What is said of the rest is of a module's own names.
        base = _BASES.get((module, owner))
        return fate(base[0], f"{base[1]}.{member}") if base else Fate("unknown")
    return found.rest


def has_own_row(module: str, name: str) -> bool:
    """Whether the table says something of this very name in a module of theirs."""
    found = modules().get(module)
    return found is not None and name in found.names


def refusal(ours: str, name: str) -> str | None:
    """Why a module of ours lacks a name; None where the table does not refuse it.

    name: "Class.member" of a member.
    """
    owner, _, member = name.rpartition(".")
    for theirs, module in modules().items():
        if module.instead == ours and (found := fate(theirs, name)).verdict == "refused":
            return f"{owner or 'penstock'} has no {member}: {found.note}"
    return None


@cache
def stand_in(ours: str, name: str) -> type | None:
    """A class of that name, which is none of anything, and refuses to be called.

    None where the table does not say that a module of ours has one.
    """
    names = [each.names for each in modules().values() if each.instead == ours]
    if not any(name in each and each[name].is_late for each in names):
        return None
    reason = refusal(ours, name)

    def refuse(kind: type, *arguments: Any, **keywords: Any) -> Any:
        from penstock.errors import ConfigError

        raise ConfigError(str(reason))

    return type(name, (), {"__new__": refuse, "__module__": ours, "__doc__": reason})


def lacking(ours: str, name: str) -> AttributeError | ImportError:
    """What the __getattr__ that calls it raises for a name that a module of ours does not have.

    An ImportError, where a statement `from module import name` asks for a name that is refused:
    Python drops the words of an AttributeError there.  An AttributeError else, as hasattr() needs.
    """
    owner, _, member = name.rpartition(".")
    reason = refusal(ours, name)
    if reason is not None and not owner and _is_importing(sys._getframe(2)):
        return ImportError(reason, name=ours)
    what = f"{owner!r} object" if owner else f"module {ours!r}"
    return AttributeError(reason or f"{what} has no attribute {member!r}")


def _is_importing(frame: FrameType) -> bool:
    """Whether what runs there now is the part of an import statement that asks for a name."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def member(ours: str, owner: str, of: Any, name: str) -> Any:
    """What the __getattr__ of a class of ours ends in.  Raises AttributeError, with the reason.

    owner: the class, by its name in the table.  of: the object.
    """
    reason = refusal(ours, f"{owner}.{name}")
    if reason is not None:
        raise AttributeError(reason)
    return object.__getattribute__(of, name)  # Once more, for what raised: a property, maybe.


def published_as(public: str, names: dict[str, Any]) -> None:
    """Has what a module defines be of the module that users import it by: help and pickles say so.

    names: the module's globals(), at its end.
    """
    for name in names["__all__"]:
        value = names[name]
        if isinstance(value, type | FunctionType) and value.__module__ == names["__name__"]:
            value.__module__ = public


def refuse_in(names: dict[str, Any]) -> None:
    """Has a module of ours say why it lacks what it lacks.  names: its globals().

    Modules inside of a package are its attributes, as theirs are, which import them all at once.
    """
    names["__getattr__"] = partial(_module_or_refusal, names["__name__"], "__path__" in names)


def _module_or_refusal(ours: str, is_package: bool, name: str) -> ModuleType | type:
    inside = f"{ours}.{name}"
    if is_package and not name.startswith("_") and find_spec(inside):
        return import_module(inside)
    found = stand_in(ours, name)
    if found is not None:
        return found
    raise lacking(ours, name)
