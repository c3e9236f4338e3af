"""Extra loss terms, per token."""
