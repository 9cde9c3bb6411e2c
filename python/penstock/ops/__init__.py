"""Optimizers by the names that DeepSpeed has for them under deepspeed.ops."""

from penstock.ops import adagrad, adam, lamb, lion

__all__ = ["adagrad", "adam", "lamb", "lion"]
