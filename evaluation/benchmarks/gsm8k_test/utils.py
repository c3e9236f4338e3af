"""GSM8K test questions (MIT licence, beside this file), scored by the final number."""

from pathlib import Path

from evaluation.scoring import every_answer, load, mean_of_lists, process_results  # noqa: F401


def dataset(**kwargs):
    """The test split beside this file."""
    return load(Path(__file__).parent)
