"""Checkpoints: saved by all ranks, read by any layout."""
