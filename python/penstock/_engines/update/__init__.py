"""From a step's gradients to new weights: optimizers, their states, courses of the rate."""
