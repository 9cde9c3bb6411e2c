"""What device this process computes on, by DeepSpeed's names.

penstock runs on CPUs so far.  Knows no ranks.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import refuse_in

__all__ = ["Accelerator", "get_accelerator", "is_current_accelerator_supported"]

refuse_in(globals())


class Accelerator:
    """The CPU."""

    _name = "cpu"

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
        """The ranks of this machine, as a launcher has said it in LOCAL_SIZE; 1 without."""
        given = os.environ.get("LOCAL_SIZE", "")
        return max(1, int(given)) if given.isdecimal() else 1

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed: "gloo"."""
        return "gloo"

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """What was called has ended when it returns."""

    def is_synchronized_device(self) -> bool:
        """True."""
        return True

    def empty_cache(self) -> None:
        """Freed memory goes back by itself."""

    def manual_seed(self, seed: int) -> None:
        """torch.manual_seed()."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        """torch.initial_seed()."""
        return torch.initial_seed()

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """torch.get_rng_state()."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """torch.set_rng_state()."""
        torch.set_rng_state(new_state)

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes of this process that are in memory."""
        return _of_process("VmRSS")

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The most of them so far."""
        return _of_process("VmHWM")

    memory_cached = memory_reserved = memory_allocated
    max_memory_cached = max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """The system keeps its own."""

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of the machine."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of the machine that nobody uses."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        """Itself: the rank computes where it is."""
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it is; never here."""
        return tensor.is_pinned()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether it is on the CPU."""
        return tensor.device.type == "cpu"

    def supported_dtypes(self) -> list[torch.dtype]:
        """Types that scripts may choose; the engines train in float16 on any CPU."""
        return [torch.float, torch.bfloat16, *[torch.half] * self.is_fp16_supported()]

    def is_bf16_supported(self) -> bool:
        """Whether models in bfloat16 train."""
        return True

    def is_fp16_supported(self) -> bool:
        """Whether this CPU computes in float16 by itself: else scripts choose bfloat16."""
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _of_process(key: str) -> int:
    """Bytes, as /proc has them."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


_accelerator = Accelerator()


def is_current_accelerator_supported() -> bool:
    """True."""
    return True


def get_accelerator() -> Accelerator:
    """The accelerator of this process."""
    return _accelerator
