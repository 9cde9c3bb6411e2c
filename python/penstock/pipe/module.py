"""A model as a list of layers, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.pipeline.pipeline_module import *  # noqa: F403
from penstock._engines.pipeline.pipeline_module import __all__ as __all__

refuse_in(globals())
