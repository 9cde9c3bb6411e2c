"""Microbatches of a batch, by the names of torch.distributed.pipelining."""

from penstock._compatibility import refuse_in
from penstock._engines.torch_schedules.microbatch import *  # noqa: F403
from penstock._engines.torch_schedules.microbatch import __all__ as __all__

refuse_in(globals())
