"""DeepSpeed's place for what goes to files.

MIN_SWAPPABLE_BYTES: the least that goes there; penstock's files take any size.
"""

from penstock._compatibility import refuse_in

__all__ = ["MIN_SWAPPABLE_BYTES"]

refuse_in(globals())

MIN_SWAPPABLE_BYTES = 1024 * 1024
