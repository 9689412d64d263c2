"""What Leadline knows about ops without torch: the op table, Gaussian expectations, recorded arguments, optimizers."""
