"""What a configuration says about ZeRO.

Knows no model: sizes are in elements, until replicas of parameters are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from penstock import _torch
from penstock.configuration import Configuration

if TYPE_CHECKING:
    from penstock._runtime import ReplicaOptions

__all__ = ["ZeroSettings"]

_BUCKET_ELEMENTS_MAX = 1 << 20  # What is gathered or reduced as a whole; more gains nothing.


@dataclass(frozen=True)
class ZeroSettings:
    """The section zero_optimization.

    stage: 0 to 3.
    bucket: elements that are reduced, or gathered, together.
    live: elements of parameters that are whole on a rank at one time.  prefetch: how far behind a
    use parameters are gathered.
    persistent: parameters of so many elements, or fewer, stay whole; persistent_in_all: as long as
    all of them together have no more than this, in the model's order.
    sums: the type in which gradients of 16 bits are added; None: their own.
    pieces_folder, states_folder: of files, for what a rank keeps of parameters in stage 3, and for
    optimizer states; None: they are in memory.  Ranks may have folders of their own.
    """

    stage: int
    bucket: int
    live: int
    prefetch: int
    persistent: int
    persistent_in_all: int
    sums: torch.dtype | None = None
    pieces_folder: str | None = field(default=None, repr=False)
    states_folder: str | None = field(default=None, repr=False)

    @property
    def has_files(self) -> bool:
        """Whether anything is in a file."""
        return self.pieces_folder is not None or self.states_folder is not None

    @staticmethod
    def of(configuration: Configuration) -> ZeroSettings:
        """As they say it."""

        def size(key: str, default: int) -> int:
            return configuration.integer(key, default, section="zero_optimization")

        return ZeroSettings(
            stage=size("stage", 0),
            bucket=min(size("reduce_bucket_size", _BUCKET_ELEMENTS_MAX), _BUCKET_ELEMENTS_MAX),
            live=size("stage3_max_live_parameters", 10**9),
            prefetch=size("stage3_prefetch_bucket_size", 5 * 10**7),
            persistent=size("stage3_param_persistence_threshold", 10**5),
            persistent_in_all=size("stage3_model_persistence_threshold", 2**63 - 1),
            sums=_sums_of(configuration),
            pieces_folder=_folder_of(configuration, "offload_param"),
            states_folder=_folder_of(configuration, "offload_optimizer"),
        )

    def are_cut(self, replicas: int) -> bool:
        """Whether so many replicas update slices, and not whole parameters."""
        return self.options_for(()).are_cut(replicas)

    def come_and_go(self, replicas: int) -> bool:
        """Whether parameters do, over so many replicas."""
        return self.options_for(()).come_and_go(replicas)

    def options_for(self, parameters: Sequence[torch.Tensor]) -> ReplicaOptions:
        """What replicas of these parameters go by; sizes in bytes are those of the widest type."""
        made: type[ReplicaOptions] = _torch.load().ReplicaOptions
        width = max((each.element_size() for each in parameters), default=4)
        return made(
            stage=self.stage,
            bucket_bytes=self.bucket * width,
            live_bytes=self.live * width,
            prefetch_bytes=self.prefetch * width,
            persistent_elements=self.persistent,
            persistent_elements_in_all=self.persistent_in_all,
            pieces_folder=self.pieces_folder,
            sums=self.sums,
        )


def _folder_of(configuration: Configuration, section: str) -> str | None:
    offload = configuration.section("zero_optimization").get(section, {})
    return str(offload["nvme_path"]) if offload.get("device") == "nvme" else None


def _sums_of(configuration: Configuration) -> torch.dtype | None:
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return types.get(str(configuration.section("data_types").get("grad_accum_dtype")))
