"""Which ranks there are, and what they have to have in common."""
