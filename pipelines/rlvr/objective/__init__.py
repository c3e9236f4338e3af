"""From log-probabilities to a loss per token."""
