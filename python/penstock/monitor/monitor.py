"""All monitors of a configuration as one, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.monitors.all_monitors import *  # noqa: F403
from penstock._engines.monitors.all_monitors import __all__ as __all__

refuse_in(globals())
