"""Makes new weights of a step's gradients: optimizers, their states, courses of the rate."""
