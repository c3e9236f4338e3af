"""Reward in, reward out."""
