"""DeepSpeed's place for ZeRO; what is in it is that of `penstock.zero`."""

from penstock.runtime.zero import partition_parameters
from penstock.runtime.zero.partition_parameters import GatheredParameters, Init

__all__ = ["GatheredParameters", "Init", "partition_parameters"]
