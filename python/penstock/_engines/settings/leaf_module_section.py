"""The section zero_optimization.leaf_module: which modules are marked, as an object.

    >>> DeepSpeedZeroLeafModuleConfig(names="layers.3").names
    ['layers.3']

Marks change nothing that penstock does (penstock/_engines/module/leaf_modules.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock._compatibility import published_as

__all__ = [
    "DEFAULT_LEAF_MODULE_CLASSES",
    "DEFAULT_LEAF_MODULE_NAMES",
    "DEFAULT_LEAF_MODULE_NAME_SUFFIXES",
    "DeepSpeedZeroLeafModuleConfig",
]

_EXPERTS = {"mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe"}
DEFAULT_LEAF_MODULE_CLASSES = [
    f"transformers.models.{name}.modeling_{name}.{word}SparseMoeBlock"
    for name, word in _EXPERTS.items()
]
DEFAULT_LEAF_MODULE_NAMES: list[str] = []
DEFAULT_LEAF_MODULE_NAME_SUFFIXES: list[str] = []


@dataclass
class DeepSpeedZeroLeafModuleConfig:
    """classes, names, name_suffixes: texts, each once; one text is a list of one."""

    classes: Sequence[str] = field(default_factory=lambda: DEFAULT_LEAF_MODULE_CLASSES)
    names: Sequence[str] = field(default_factory=lambda: DEFAULT_LEAF_MODULE_NAMES)
    name_suffixes: Sequence[str] = field(default_factory=lambda: DEFAULT_LEAF_MODULE_NAME_SUFFIXES)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            texts = [value] if isinstance(value, str) else map(str, value)
            setattr(self, name, list(dict.fromkeys(texts)))


published_as("penstock.runtime.zero.leaf_module_config", globals())
