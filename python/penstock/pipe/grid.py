"""Process groups for the axes of a topology, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.pipeline.grid import *  # noqa: F403
from penstock._engines.pipeline.grid import __all__ as __all__

refuse_in(globals())
