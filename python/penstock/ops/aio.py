"""DeepSpeed's place for what builds its operator for files."""

from penstock._compatibility import refuse_in
from penstock.ops.op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]

refuse_in(globals())
