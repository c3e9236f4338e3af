"""Training by another project's trainer: its command between our data and our evaluation."""
