"""DeepSpeed's place for pipelines of two stages a rank, which meet at the last one."""

from penstock._compatibility import refuse_in
from penstock._engines.pipeline.dualpipev_module import *  # noqa: F403
from penstock._engines.pipeline.dualpipev_module import __all__ as __all__

refuse_in(globals())
