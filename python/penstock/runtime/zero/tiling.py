"""DeepSpeed's place for layers in tiles."""

from penstock._compatibility import refuse_in
from penstock.zero import TiledLinear

__all__ = ["TiledLinear"]

refuse_in(globals())
