"""What is checked of compacted contexts before a run, and before its first step."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.compaction import rows_beyond
from pipelines.recipe.read import read_recipe


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        (["rlvr.rollout.compact={at_tokens: 20, max_tokens: 16}"], "rlvr.rollout.compact.at_tokens", "Use more than 24"),
        (["rlvr.rollout.compact={max_tokens: 16}"], "rlvr.rollout.compact.at_tokens", ""),
        (["rlvr.rollout.compact={at_tokens: 99, max_tokens: 9}", "rlvr.rollout.opponents=[random]"], "rlvr.rollout.opponents", "opponents"),
        (["rlvr.rollout.compact={at_tokens: 99, max_tokens: 16}", "rlvr.prompting=ppe"], "rlvr.rollout.compact", "prompting: plain"),
        (["evaluate.tasks.0.environment.compact={at_tokens: 20, max_tokens: 16}"],
         "evaluate.tasks.lake.environment.compact.at_tokens", "Use more than 32"),
        (["evaluate.tasks.0.environment.compact={at_tokens: 99, tokens: 16}"],
         "evaluate.tasks.0.environment.compact.max_tokens", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_compacted_is_refused(tmp_path, changes, field, fix):
    with pytest.raises(RecipeError) as told:
        check(read_recipe(toys.lake(tmp_path), changes))
    assert told.value.problems[0].field == field and fix in str(told.value)


def test_prompts_leave_room_for_a_summary():
    part = bind("rlvr.rollout", {"kind": "multi_turn", "compact": {"at_tokens": 30, "max_tokens": 10}}).fn
    assert part.uses("setup") and not bind("rlvr.rollout", {"kind": "multi_turn"}).fn.uses("setup")
    with pytest.raises(RecipeError, match=r"longest prompt \(20 tokens\)"):
        part.setup(type("Context", (), {"prompts": lambda self: [[1] * 5, [1] * 20]})())


def test_rows_fit_the_model(tmp_path):
    """A row has what comes before the last turn, that turn, and the summary behind it."""
    compact = {"at_tokens": 99, "max_tokens": 16}
    changes = [
        f"rlvr.rollout.compact={compact}",
        f"evaluate.tasks.0.environment.compact={compact}",
        "rlvr.sampling.max_tokens=8",
    ]
    recipe = read_recipe(toys.lake(tmp_path), changes)
    assert [list(rows_beyond(recipe.node(stage), 256)) for stage in ("sft", "rlvr", "evaluate")] == [[], [], []]
    [(field, problem, fix)] = rows_beyond(recipe.node("rlvr"), 98 + 8 + 16)
    assert field == "rlvr.rollout.compact.at_tokens" and "98 tokens" in problem and "at most 98" in fix
    assert list(rows_beyond(recipe.node("rlvr"), 98 + 8 + 16 + 1)) == []
    assert [each[0] for each in rows_beyond(recipe.node("evaluate"), 130)] == [
        "evaluate.tasks.lake.environment.compact.at_tokens"
    ]
