"""The engine of a model without a pipeline."""
