"""Whether the rows of a source have answers: where they do, a row without one is none; where none does, they are prompts alone."""

from __future__ import annotations

from itertools import islice

from pipelines.curate.gold import NO_ANSWER
from pipelines.curate.mapping import to_problem
from pipelines.curate.sources import rows
from pipelines.curate.values import RowError
from pipelines.recipe.settings import Source
from pipelines.recipe.source import OF_ROWS

FIRST_ROWS = 1000
"""Rows that are looked at."""


def has_answers(source: Source) -> bool:
    """Whether one of the first rows of a source has a gold answer, an answer to be learned, or a pair; as a rule the first has.

    Generators say what they make, and a source that names a verifier or the column of its answers has them: no row is read.

    Raises:
        DataError: as `rows`.
    """
    if source.kind not in OF_ROWS or source.self_supervised or source.text_column:
        return True
    if source.verifier or "answer" in source.columns:
        return True
    for row in islice(rows(source), FIRST_ROWS):
        if row.columns is None:
            continue
        try:
            to_problem(row.columns, source, self_check=False)
        except RowError as error:
            if error.field == "answer" and error.reason != NO_ANSWER:
                return True
        else:
            return True
    return False
