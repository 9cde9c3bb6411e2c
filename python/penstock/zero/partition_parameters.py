"""Parameters under ZeRO 3, by DeepSpeed's names.

partitioned_param_data_shape: what DeepSpeed's parameters have whose values are away.

`penstock.runtime.zero.partition_parameters` is this module.
"""

from penstock._compatibility import refuse_in
from penstock.zero._external import register_external_parameter, unregister_external_parameter
from penstock.zero._gathering import GatheredParameters, unwrap_model_for_generation
from penstock.zero._init import Init
from penstock.zero._parameters import ZeroParameter, ZeroParamStatus

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "ZeroParameter",
    "register_external_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]

refuse_in(globals())

partitioned_param_data_shape = [0]
