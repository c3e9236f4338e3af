"""Providers: who fills the columns that a forward pass or a model of its own gives."""
