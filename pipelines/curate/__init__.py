"""Curate: sources to clean, deduplicated, decontaminated splits with a data card."""
