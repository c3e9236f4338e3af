"""Speed and quality, measured beside a peer."""
