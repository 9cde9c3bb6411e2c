"""DeepSpeed's place for engines."""

from penstock.zero.engine import Engine

__all__ = ["DeepSpeedEngine"]

DeepSpeedEngine = Engine
