"""Traced models, by the names of torch.distributed.pipelining."""

from penstock._compatibility import refuse_in
from penstock._engines.tracing.tracer import *  # noqa: F403
from penstock._engines.tracing.tracer import __all__ as __all__

refuse_in(globals())
