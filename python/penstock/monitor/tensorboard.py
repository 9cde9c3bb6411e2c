"""The monitor that writes for TensorBoard, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.monitors.tensorboard import *  # noqa: F403
from penstock._engines.monitors.tensorboard import __all__ as __all__

refuse_in(globals())
