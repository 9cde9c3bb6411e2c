"""A backward of one's own, whole or in halves, by the names of torch.distributed.pipelining."""

from penstock._compatibility import refuse_in
from penstock._engines.torch_schedules.stage_backward import *  # noqa: F403
from penstock._engines.torch_schedules.stage_backward import __all__ as __all__

refuse_in(globals())
