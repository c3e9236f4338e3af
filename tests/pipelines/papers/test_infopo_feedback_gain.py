"""What stands in place of a turn's feedback. With a model: test_scored_columns.py."""

from __future__ import annotations

import pytest

from pipelines.papers.infopo import _hidden
from pipelines.rlvr.common.scored_rows import Row

FRONT, BACK, END = [90, 91], [92], 99
NEUTRAL = [7, 8]


@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("ended", [False, True])
def test_the_feedback_alone_is_replaced_by_as_many_tokens(length, ended):
    """A placeholder is cut, or its last token repeated; the template around it and all other tokens stay."""
    wrapped = [[*FRONT, *NEUTRAL, *BACK], [END, *FRONT, *NEUTRAL, *BACK]]
    prompt, action, answer = [1, 2], [3, 4], [5, 6]
    feedback = list(range(20, 20 + length))
    around = [END, *FRONT] if ended else FRONT
    tokens = [*prompt, *action, *around, *feedback, *BACK, *answer]
    second = len(tokens) - len(answer)
    row = Row(0, tokens, 2, [(2, 4), (second, len(tokens))], 0)
    hidden = _hidden(row, 0, wrapped, NEUTRAL)
    assert hidden == [*prompt, *action, *around, *[7, 8, 8, 8, 8, 8][:length], *BACK]
