"""Schedules of a pipeline and their instructions, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._pipe_schedule import *  # noqa: F403
from penstock._pipe_schedule import __all__ as __all__

refuse_in(globals())
