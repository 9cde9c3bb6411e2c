"""The engine of a model as a list of layers, in stages."""
