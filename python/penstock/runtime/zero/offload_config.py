"""The places in which ZeRO keeps what ranks share, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.settings.offload_sections import *  # noqa: F403
from penstock._engines.settings.offload_sections import __all__ as __all__

refuse_in(globals())
