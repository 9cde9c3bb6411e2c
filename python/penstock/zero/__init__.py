"""ZeRO by DeepSpeed's names: what models and scripts say about parameters of stage 3.

>>> with penstock.zero.GatheredParameters(layer.weight, modifier_rank=0):
...     torch.nn.init.normal_(layer.weight)

Nothing of it is needed to train: penstock.initialize(config=...) with zero_optimization.stage is.
"""

from penstock import _torch  # noqa: F401  (Says what to install.)
from penstock._compatibility import refuse_in
from penstock._engines.parameters.tiled_linear import TiledLinear
from penstock.zero import partition_parameters
from penstock.zero.partition_parameters import (
    GatheredParameters,
    Init,
    ZeroParameter,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
    unwrap_model_for_generation,
)

__all__ = [
    "GatheredParameters",
    "Init",
    "TiledLinear",
    "ZeroParamStatus",
    "ZeroParameter",
    "partition_parameters",
    "register_external_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]

refuse_in(globals())
