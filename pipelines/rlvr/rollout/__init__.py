"""From problems to trajectories."""
