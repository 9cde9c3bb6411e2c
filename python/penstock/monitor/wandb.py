"""The monitor that writes to Weights & Biases, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.monitors.wandb import *  # noqa: F403
from penstock._engines.monitors.wandb import __all__ as __all__

refuse_in(globals())
