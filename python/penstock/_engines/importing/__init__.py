"""Checkpoints that DeepSpeed and torch have written."""
