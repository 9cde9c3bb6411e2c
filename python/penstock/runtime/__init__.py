"""DeepSpeed's place for the pipeline: `penstock.runtime.pipe` is `penstock.pipe`."""

from penstock._compatibility import refuse_in
from penstock.runtime import pipe

__all__ = ["pipe"]

refuse_in(globals())
