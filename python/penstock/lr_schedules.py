"""Courses of the learning rate, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.update.lr_schedules import *  # noqa: F403
from penstock._engines.update.lr_schedules import __all__ as __all__

refuse_in(globals())
