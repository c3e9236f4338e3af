"""From advantages to token advantages."""
