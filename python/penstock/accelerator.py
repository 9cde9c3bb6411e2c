"""What device this process computes on, by DeepSpeed's names.

penstock runs on CPUs so far.  Knows no ranks.
"""

from __future__ import annotations

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

__all__ = ["Accelerator", "get_accelerator"]


class Accelerator:
    """The CPU."""

    def is_available(self) -> bool:
        """True: there is one."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """ "cpu", whatever the index."""
        del device_index
        return "cpu"

    def current_device_name(self) -> str:
        """ "cpu"."""
        return "cpu"

    def current_device(self) -> str:
        """ "cpu"."""
        return "cpu"

    def device(self, device_index: int | None = None) -> torch.device:
        """torch.device("cpu")."""
        return torch.device(self.device_name(device_index))

    def device_count(self) -> int:
        """1."""
        return 1

    def communication_backend_name(self) -> str:
        """Of torch.distributed: "gloo"."""
        return "gloo"

    def is_bf16_supported(self) -> bool:
        """Whether models in bfloat16 train."""
        return True

    def is_fp16_supported(self) -> bool:
        """Whether models in float16 train."""
        return True


_accelerator = Accelerator()


def get_accelerator() -> Accelerator:
    """That of this process."""
    return _accelerator
