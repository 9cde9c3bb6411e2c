"""What builds DeepSpeed's own operators: scripts ask whether they are there, and have them loaded.

Nothing is built here: torch and penstock's library have what these are for.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import ClassVar

from penstock._compatibility import refuse_in

__all__ = [
    "AsyncIOBuilder",
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPULionBuilder",
    "FusedAdamBuilder",
    "FusedLambBuilder",
    "FusedLionBuilder",
    "OpBuilder",
]

refuse_in(globals())


class OpBuilder:
    """NAME: what deepspeed.ops.__compatible_ops__ has it under.  place: the module in its place."""

    NAME: ClassVar[str] = ""
    place: ClassVar[str] = "penstock.ops"

    def is_compatible(self, verbose: bool = False) -> bool:
        """True: there is something in its place."""
        return True

    def builder(self) -> OpBuilder:
        """Itself."""
        return self

    def load(self, verbose: bool = True) -> ModuleType:
        """The module that is in its place."""
        return importlib.import_module(self.place)


class AsyncIOBuilder(OpBuilder):
    """Files of offload_optimizer and offload_param."""

    NAME = "async_io"


class CPUAdamBuilder(OpBuilder):
    """DeepSpeedCPUAdam."""

    NAME = "cpu_adam"
    place = "penstock.ops.adam"


class CPUAdagradBuilder(OpBuilder):
    """DeepSpeedCPUAdagrad."""

    NAME = "cpu_adagrad"
    place = "penstock.ops.adagrad"


class CPULionBuilder(OpBuilder):
    """DeepSpeedCPULion."""

    NAME = "cpu_lion"
    place = "penstock.ops.lion"


class FusedAdamBuilder(CPUAdamBuilder):
    """FusedAdam."""

    NAME = "fused_adam"


class FusedLambBuilder(OpBuilder):
    """FusedLamb."""

    NAME = "fused_lamb"
    place = "penstock.ops.lamb"


class FusedLionBuilder(CPULionBuilder):
    """FusedLion."""

    NAME = "fused_lion"
