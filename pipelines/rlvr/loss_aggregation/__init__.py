"""Token weights that turn a loss per token into a scalar."""
