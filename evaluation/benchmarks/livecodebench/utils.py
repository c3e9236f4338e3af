"""LiveCodeBench (columns and prompt; MIT licence): programs against public and private tests, in the sandbox."""

from pathlib import Path

from evaluation import livecode, own_rows
from evaluation.livecode import process_results  # noqa: F401
from evaluation.scoring import every_answer, mean_of_lists  # noqa: F401


def dataset(data, start_date=None, end_date=None, **kwargs):
    """The problems of the file that the recipe names, of the days that it names."""
    return own_rows.dataset(livecode.documents(data, start_date, end_date))


def small(start_date=None, end_date=None, **kwargs):
    """The problems beside this file."""
    return own_rows.dataset(livecode.documents(str(Path(__file__).parent / "small.jsonl"), start_date, end_date))
