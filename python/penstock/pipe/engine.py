"""The engine of a pipeline, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.pipeline.pipeline_engine import *  # noqa: F403
from penstock._engines.pipeline.pipeline_engine import __all__ as __all__

refuse_in(globals())
