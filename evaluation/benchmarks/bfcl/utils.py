"""BFCL (columns, prompt and rules; Apache 2.0): calls of functions, by the allowed values of their parameters."""

from pathlib import Path

from evaluation import bfcl, own_rows
from evaluation.scoring import every_answer, mean_of_lists, process_results  # noqa: F401

SMALL = str(Path(__file__).parent / "small.jsonl")


def tools(data, **kwargs):
    """The questions of the file that the recipe names, with tools."""
    return own_rows.dataset(bfcl.documents(data, as_text=False))


def text(data, **kwargs):
    """The same, with the functions in a system message."""
    return own_rows.dataset(bfcl.documents(data, as_text=True))


def small(**kwargs):
    """The questions beside this file, with tools."""
    return own_rows.dataset(bfcl.documents(SMALL, as_text=False))


def small_text(**kwargs):
    """The same, with the functions in a system message."""
    return own_rows.dataset(bfcl.documents(SMALL, as_text=True))
