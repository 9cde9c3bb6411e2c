"""Layers that are not made yet, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.pipeline.layer_specs import *  # noqa: F403
from penstock._engines.pipeline.layer_specs import __all__ as __all__

refuse_in(globals())
