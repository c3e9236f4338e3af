"""Preference optimisation: pairs of answers, or labelled ones, learned directly (DPO and its family)."""
