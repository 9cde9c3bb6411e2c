"""Schedules, by the names of torch.distributed.pipelining."""

from penstock._compatibility import refuse_in
from penstock._engines.torch_schedules.schedules import *  # noqa: F403
from penstock._engines.torch_schedules.schedules import __all__ as __all__

refuse_in(globals())
