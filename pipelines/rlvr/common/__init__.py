"""Building blocks that several methods share, of the core and of plug-ins."""
