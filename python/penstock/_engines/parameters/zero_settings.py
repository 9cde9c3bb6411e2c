"""What a configuration says about ZeRO.

Knows no model: sizes are in elements, until replicas of parameters are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from penstock import _torch
from penstock.configuration import Configuration

if TYPE_CHECKING:
    from penstock._runtime import ReplicaOptions

__all__ = ["ZeroSettings"]

_BUCKET_ELEMENTS_MAX = 1 << 20  # What is gathered or reduced as a whole; more gains nothing.
_ALL = 2**63 - 1
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
        """The settings that the configuration says."""
        zero = configuration.settings["zero_optimization"]
        in_all = zero["stage3_model_persistence_threshold"]
        sums = configuration.settings["data_types"]["grad_accum_dtype"]
        return ZeroSettings(
            stage=zero["stage"],
            bucket=min(zero["reduce_bucket_size"], _BUCKET_ELEMENTS_MAX),
            live=zero["stage3_max_live_parameters"],
            prefetch=zero["stage3_prefetch_bucket_size"],
            persistent=zero["stage3_param_persistence_threshold"],
            persistent_in_all=_ALL if in_all is None else in_all,
            sums=None if sums is None else _TYPES[sums],
            pieces_folder=_folder_of(zero["offload_param"]),
            states_folder=_folder_of(zero["offload_optimizer"]),
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


def _folder_of(offload: Mapping[str, str]) -> str | None:
    return offload["nvme_path"] if offload["device"] == "nvme" else None
