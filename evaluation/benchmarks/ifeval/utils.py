"""IFEval (columns and figures; Apache 2.0): instructions that can be checked in the text."""

from pathlib import Path

from evaluation import ifeval, own_rows
from evaluation.ifeval import pooled, process_results  # noqa: F401
from evaluation.scoring import every_answer  # noqa: F401


def dataset(data=None, **kwargs):
    """The prompts of the file that the recipe names, or of the data set on the hub."""
    return own_rows.dataset(ifeval.documents(data))


def small(**kwargs):
    """The prompts beside this file."""
    return own_rows.dataset(ifeval.documents(str(Path(__file__).parent / "small.jsonl")))
