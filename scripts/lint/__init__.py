"""Rules of the tree that ruff does not know: `python -m scripts.lint`."""
