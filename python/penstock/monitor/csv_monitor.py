"""The monitor that writes tables, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.monitors.csv_files import *  # noqa: F403
from penstock._engines.monitors.csv_files import __all__ as __all__

refuse_in(globals())
