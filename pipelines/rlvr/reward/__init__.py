"""Who scores rollouts."""
