"""The ranks that there are, and what they have to have in common."""
