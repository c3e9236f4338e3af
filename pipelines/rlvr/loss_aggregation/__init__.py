"""Weights that turn a loss per token into a number."""
