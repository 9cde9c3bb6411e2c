"""DeepSpeed's place for its error of ZeRO."""

from penstock._compatibility import refuse_in
from penstock.errors import ConfigError

__all__ = ["ZeRORuntimeException"]

refuse_in(globals())

ZeRORuntimeException = ConfigError
