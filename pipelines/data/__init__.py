"""Records and the curated data folder."""
