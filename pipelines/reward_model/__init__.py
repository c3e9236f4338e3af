"""Reward models: scalar heads on the policy's architecture, learned from pairs of answers."""
