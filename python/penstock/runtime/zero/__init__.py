"""DeepSpeed's place for ZeRO; what is in it is that of `penstock.zero`."""

from penstock._compatibility import refuse_in
from penstock.runtime.zero import partition_parameters
from penstock.zero import (
    GatheredParameters,
    Init,
    TiledLinear,
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
    "partition_parameters",
    "register_external_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]

refuse_in(globals())
