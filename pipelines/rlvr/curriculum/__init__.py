"""Which problems come next."""
