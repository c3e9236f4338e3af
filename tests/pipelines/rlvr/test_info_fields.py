"""Settings that name a field of the records: one that no record has is refused before the first step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.base.errors import DataError
from pipelines.data.records import Problem
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import info_fields


def problem(**info):
    return Problem(
        uid="a",
        prompt=[{"role": "user", "content": "q"}],
        answer="4",
        verifier="exact",
        source="s",
        licence="",
        info=info,
    )


ROWS = [problem(split="train"), problem(split="train", metadata={"letters": "a b"}, context="a b")]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"rollout": {"kind": "noisy", "field": "contxt"}},
            r"rlvr\.rollout\.field: no record of train has info\.contxt",
        ),
        (
            {"providers": [{"kind": "masked_context", "field": "metadata.word"}]},
            r"providers\.0\.field: .*info\.metadata\.word",
        ),
        (
            {"providers": ["critic", {"kind": "record_weight", "field": "sise"}]},
            r"providers\.1\.field: .* context, metadata, split",
        ),
        ({"rollout": {"kind": "noisy", "field": "context"}}, None),
        ({"rollout": "noisy", "providers": ["masked_context", "record_weight"]}, None),
        ({"providers": [{"kind": "masked_context", "field": "metadata.letters"}]}, None),
    ],
)
def test_a_field_that_no_record_has_is_refused(section, said):
    rlvr = Rlvr.model_validate(section)
    if said is None:
        return info_fields.require(ROWS, rlvr)
    with pytest.raises(DataError, match=said):
        info_fields.require(ROWS, rlvr)


def test_every_record_says_what_a_term_is_worth():
    """A step draws from all of them: one that says nothing would end the run when it is drawn."""
    rlvr = Rlvr.model_validate({"reward": [{"kind": "verifier", "weight": "preference", "name": "v1.5"}]})
    told = problem(preferences={"v1.5": 1.0})
    info_fields.require([told, told], rlvr)
    with pytest.raises(
        DataError, match=r"terms\.0\.weight: 1 of 2 records of train have no info\.preferences\.v1\.5 \(a is"
    ):
        info_fields.require([told, problem(split="train")], rlvr)


def test_a_term_for_some_sources_asks_nothing_of_the_others():
    rlvr = Rlvr(reward=["verifier", {"kind": "verifier", "weight": "preference", "name": "v", "sources": ["s"]}])
    other = replace(problem(), source="other")
    info_fields.require([problem(preferences={"v": 1.0}), other], rlvr)
    with pytest.raises(DataError, match=r"terms\.1\.weight: 1 of 1 records of train have no info\.preferences\.v"):
        info_fields.require([problem(), other], rlvr)
