"""Rules between methods: each is read off the cards and the table of columns, and says what to do."""

from __future__ import annotations

import pytest
import toys

from pipelines.contract.catalogue import names
from pipelines.errors import RecipeError
from pipelines.recipe import check as rules
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.slots import SLOTS


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.advantage=w_reinforce", "rlvr.shaping=[laser]"], "laser changes the reward, which nothing here reads"),
        (
            ["rlvr.advantage=w_reinforce", "rlvr.divergence={kind: k3, where: reward}"],
            "rlvr.divergence: k3 changes the reward",
        ),
        (
            ["rlvr.objective=gspo", "rlvr.old_logp=trainer", "rlvr.credit=[truncated_is]"],
            "truncated_is corrects the ratio of each token, and gspo's ratio belongs to the whole sequence",
        ),
        (["rlvr.group_size=1", "rlvr.advantage=rloo"], "rloo compares the rollouts of a group"),
        (["rlvr.group_size=1", "rlvr.advantage=ngrpo"], "ngrpo compares the rollouts of a group"),
    ],
    ids=str,
)
def test_what_has_no_effect_or_no_meaning_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["rlvr.group_size=1", "rlvr.advantage=reinforce_pp"],
        ["rlvr.group_size=1", "rlvr.rollout=demonstrated"],
        ["rlvr.objective=clip", "rlvr.old_logp=trainer", "rlvr.credit=[truncated_is]"],
        ["rlvr.advantage=w_reinforce", "rlvr.divergence={kind: k3, where: loss}"],
    ],
    ids=str,
)
def test_what_has_is_not(tmp_path, overrides):
    check(read_recipe(toys.recipe(tmp_path), overrides))


def test_the_rules_name_no_method():
    """In code; a message may name one as an example of what to use."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(rules))
    compared = [c.value for node in ast.walk(tree) if isinstance(node, ast.Compare)
                for c in ast.walk(node) if isinstance(c, ast.Constant)]  # fmt: skip
    methods = {name for slot in SLOTS for name in names(f"rlvr.{slot}")}
    assert not methods & {value for value in compared if isinstance(value, str)}
