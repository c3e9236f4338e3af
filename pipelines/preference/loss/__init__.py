"""Slot `loss` of a preference stage: what a pair of answers, or a labelled one, costs."""
