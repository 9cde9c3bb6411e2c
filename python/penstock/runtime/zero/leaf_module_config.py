"""The section leaf_module of zero_optimization, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.settings.leaf_module_section import *  # noqa: F403
from penstock._engines.settings.leaf_module_section import __all__ as __all__

refuse_in(globals())
