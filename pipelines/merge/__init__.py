"""Merging: several models of one architecture into one, without training."""
