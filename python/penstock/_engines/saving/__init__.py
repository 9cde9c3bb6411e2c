"""Checkpoints: what a rank saves, and what a resumed run sets."""
