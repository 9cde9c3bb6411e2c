"""Boards of a run that an engine writes to."""
