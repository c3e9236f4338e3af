"""Prefect flows over the stages, and the `whetstone` command line."""
