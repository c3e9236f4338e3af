"""Slot `loss` of an SFT stage: what a trained token costs."""
