"""Which rows train."""
