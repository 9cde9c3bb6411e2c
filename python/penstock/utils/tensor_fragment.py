"""What optimizers have of parameters, by DeepSpeed's names."""

from penstock._compatibility import refuse_in
from penstock._engines.module.fragments import *  # noqa: F403
from penstock._engines.module.fragments import __all__ as __all__

refuse_in(globals())
