"""Weights that follow how well a term agrees with the verdict (BARFI)."""

from __future__ import annotations

import json

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.reward.composite import agreement

SHORT = {"kind": "verifier", "name": "short", "verifier": "regex", "answer": ".{0,6}"}


def composite(**weight):
    return bind("rlvr.reward", Rlvr(reward=["verifier", {**SHORT, "weight": {"learn": 0.1, **weight}}]).reward).fn


def rows(pairs, group=0):
    """Scored rows from (the term's value, whether it is correct)."""
    out = [answer("a" * 32, group, "x", correct=correct) for _, correct in pairs]
    for row, (value, _) in zip(out, pairs, strict=True):
        row.components = {} if value is None else {"short": value}
    return out


def test_it_grows_with_agreement_shrinks_with_the_contrary_and_stays_in_bounds():
    reward = composite(start=1.0, high=1.25)
    agrees, contrary = rows([(1.0, True), (0.0, False)]), rows([(0.0, True), (1.0, False)])
    history = []
    for draw in (agrees, agrees, agrees, contrary):
        assert reward.on_rollouts(draw) is draw
        history.append(reward.learned["short"])
    assert history == pytest.approx([1.1, 1.2, 1.25, 1.15])
    for _ in range(30):
        reward.on_rollouts(contrary)
    assert reward.learned["short"] == 0.0
    assert reward.total({"verifier": 1.0, "short": 5.0}) == 1.0


@given(st.lists(st.tuples(st.floats(-2, 2), st.booleans()), min_size=2, max_size=8), st.floats(-5, 5))
def test_agreement_is_a_correlation_inside_groups(pairs, shift):
    value = agreement(rows(pairs), "short")
    assert -1 - 1e-9 <= value <= 1 + 1e-9
    moved = [(v + shift, c) for v, c in pairs]
    both = agreement(rows(pairs) + rows(moved, 1), "short")
    assert both == pytest.approx(value, abs=1e-4), "a group's level says nothing"
    assert agreement(rows([(v, not c) for v, c in pairs]), "short") == pytest.approx(-value, abs=1e-9)


def test_what_does_not_vary_or_is_not_known_says_nothing():
    for pairs in ([(1.0, True), (1.0, False)], [(1.0, True), (0.0, True)], [(None, True), (1.0, None)], []):
        assert agreement(rows(pairs), "short") == 0.0
    assert agreement(rows([(1.0, True), (0.0, False), (9.0, None), (None, True)]), "short") == pytest.approx(1.0)


def test_the_weights_survive_a_restart_and_are_shown():
    reward = composite(start=0.5)
    reward.on_rollouts(rows([(1.0, True), (0.0, False)]))
    again = composite(start=0.5)
    again.load_state_dict(json.loads(json.dumps(reward.state_dict())))
    assert again.learned == reward.learned == {"short": pytest.approx(0.6)}
    assert reward.uses("on_rollouts") and not reward.uses("on_batch")


def test_a_start_outside_the_bounds_is_refused():
    with pytest.raises(RecipeError, match=r"terms\.1\.weight"):
        composite(start=3.0)


def test_the_trainer_learns_a_weight(tmp_path, start):
    term = "{kind: verifier, name: long, verifier: regex, answer: '.{5,}', weight: {learn: 0.2, start: 0.3}}"
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), f"rlvr.reward=[verifier, {term}]", "rlvr.prompts=8")
    made.run()
    shown = [
        values["reward_component/long.weight"]
        for _, values in toys.history(tmp_path / "work")
        if "reward/mean" in values
    ]
    assert shown[0] == pytest.approx(0.3) and len(set(shown)) > 1
