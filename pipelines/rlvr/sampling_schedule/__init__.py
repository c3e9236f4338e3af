"""How often a step samples."""
