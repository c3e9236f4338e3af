"""Weights that records ask for: on the simplex, evenly, told to the policy and to the reward alike."""

from __future__ import annotations

from collections import Counter

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.curate.mapping import to_problem
from pipelines.curate.preferences import PARTS, drawn
from pipelines.data.chat import with_preferences
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source

QUESTION = [{"role": "user", "content": "2 + 2?"}]


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=6, unique=True), st.integers(0, 99))
def test_weights_are_on_the_simplex_and_depend_on_what_they_say(names, seed):
    weights = drawn(names, seed, QUESTION)
    tenths = [weight * PARTS for weight in weights.values()]
    assert list(weights) == names and sum(tenths) == pytest.approx(PARTS)
    assert all(weight >= 0 and weight == pytest.approx(round(weight)) for weight in tenths)
    assert weights == drawn(names, seed, QUESTION)


def test_every_weight_is_as_likely():
    counts = Counter(drawn(["a", "b"], seed, QUESTION)["a"] for seed in range(2200))
    assert len(counts) == PARTS + 1 and all(140 < count < 260 for count in counts.values())


def test_records_say_their_weights_to_the_policy_and_to_the_reward():
    source = Source(kind="file", path="x.jsonl", preferences=["correct", "brief"], system="Be good.", seed=3)
    told = set()
    for number in range(20):
        problem = to_problem({"question": f"{number} + 2?", "answer": str(number + 2)}, source, self_check=True)
        weights = problem.info["preferences"]
        assert problem.prompt == with_preferences(
            [{"role": "system", "content": "Be good."}, {"role": "user", "content": f"{number} + 2?"}], weights
        )
        told.add(problem.prompt[0]["content"])
    assert len(told) > 4 and all(text.startswith("Be good. Preferences: correct ") for text in told)


@pytest.mark.parametrize("field", ["preferences: [a]", "preferences: [a, a]", "preferences: ['a b', c]"])
def test_what_weighs_nothing_is_refused(tmp_path, field):
    source = f"{{kind: reasoning_gym, task: chain_sum, size: 9, {field}}}"
    with pytest.raises(RecipeError, match="preferences"):
        read_recipe(toys.recipe(tmp_path), [f"curate.sources=[{source}]"])
