"""Generators of the pages that are read from the code (`make docs`)."""
