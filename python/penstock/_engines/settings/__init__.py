"""Sections of a configuration as objects, by DeepSpeed's names."""
