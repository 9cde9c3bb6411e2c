"""The engine of a model without a pipeline."""

from penstock._compatibility import refuse_in
from penstock._engines.module.module_engine import *  # noqa: F403
from penstock._engines.module.module_engine import __all__ as __all__

refuse_in(globals())
