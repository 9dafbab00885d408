"""Training: the loop, minibatches, optimisers, checkpoints and callbacks."""
