"""What was built, by DeepSpeed's names.

torch_info: "0.0" is what nothing was built for.
"""

from __future__ import annotations

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import DEEPSPEED, refuse_in

__all__ = ["torch_info", "version"]

refuse_in(globals())

version = DEEPSPEED
torch_info = {
    "version": ".".join(torch.__version__.split(".")[:2]),
    "cuda_version": "0.0",
    "nccl_version": "0.0",
    "hip_version": "0.0",
    "bf16_support": True,
}
