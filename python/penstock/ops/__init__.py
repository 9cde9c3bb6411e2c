"""Optimizers by the names that DeepSpeed has for them under deepspeed.ops."""

from penstock._compatibility import refuse_in
from penstock.ops import adagrad, adam, lamb, lion

__all__ = ["adagrad", "adam", "lamb", "lion"]

refuse_in(globals())
