"""Optimizers by the names that DeepSpeed has for them under deepspeed.ops.

__compatible_ops__: by the name of an operator of DeepSpeed's, whether something is in its place.
"""

from penstock._compatibility import refuse_in
from penstock.ops import adagrad, adam, aio, lamb, lion, op_builder

__all__ = ["adagrad", "adam", "aio", "lamb", "lion", "op_builder"]

refuse_in(globals())

__compatible_ops__ = {
    each.NAME: True
    for each in vars(op_builder).values()
    if isinstance(each, type) and issubclass(each, op_builder.OpBuilder) and each.NAME
}
