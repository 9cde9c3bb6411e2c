"""DeepSpeed's place for engines."""

from penstock._compatibility import refuse_in
from penstock.zero.engine import Engine

__all__ = ["DeepSpeedEngine"]

refuse_in(globals())

DeepSpeedEngine = Engine
