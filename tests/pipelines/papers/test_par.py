"""Which problem a reference answer belongs to."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import toys
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.rlvr.pack import pack


def test_references_are_found_by_the_number_in_the_uid():
    """The column `problem` is the uid's first fifteen hexadecimal digits."""
    uids = ["00000000000001f" + "0" * 17, "abcdef012345678" + "9" * 17]
    rows = [
        answer(uid, i, "x", score=score, correct=True)
        for i, (uid, score) in enumerate(zip(uids, (0.0, 2.0), strict=True))
    ]
    part = bind("rlvr.shaping", "par")
    context = dataclasses.replace(toys.setup_context([0, 1]), rollouts=lambda numbers, count: rows)
    part.fn.setup(context)
    columns = pack(rows, step=0, total_steps=1)
    shaped = part(columns | {"reward": torch.tensor([0.0, 1.0])})
    assert shaped.tolist() == pytest.approx([0.5, 1 / (1 + 2.718281828)])
    rows[0].score = None
    part = bind("rlvr.shaping", "par")
    part.fn.setup(context)
    with pytest.raises(RecipeError, match="no scored reference answer for problem 31"):
        part(columns | {"reward": torch.tensor([0.0, 1.0])})
