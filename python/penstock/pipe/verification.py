"""What proves a schedule of a pipeline."""

from penstock._compatibility import refuse_in
from penstock._pipe_verification import *  # noqa: F403
from penstock._pipe_verification import __all__ as __all__

refuse_in(globals())
