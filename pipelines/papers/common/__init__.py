"""What several papers share and nothing of the core needs."""
