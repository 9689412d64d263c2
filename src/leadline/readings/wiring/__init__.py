"""Is the network asked the right question? What outputs depend on, what the loss rewards, which tensors learn."""
