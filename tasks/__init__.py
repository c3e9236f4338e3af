"""One tracked, reusable, resumable Prefect task per stage."""
