"""A traced model, cut into stages."""
