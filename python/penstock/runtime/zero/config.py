"""The section zero_optimization of a configuration, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.settings.zero_section import *  # noqa: F403
from penstock._engines.settings.zero_section import __all__ as __all__

refuse_in(globals())
