"""From rewards to advantages."""
