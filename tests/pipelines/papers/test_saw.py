"""Rows sampled with a hint train after the plain prompt too."""

from __future__ import annotations

import pytest
import toys
from scripted import context, ids, parts, request, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Role, Stop
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.diagnostics import Outcome, of_rollouts


def rollouts(requests, script=lambda prefix, number: "x", seed=0, **settings):
    ctx = context(script, seed=seed)
    return bind("rlvr.rollout", {"kind": "saw", **settings}).fn.run(requests, ctx), ctx


def test_a_step_by_hand():
    """Two of A's four rollouts are told "abc"; B has no such field."""
    asked = [request("A", 4, group=0, tip="abc"), request("B", 2, group=1)]
    rows, ctx = rollouts(asked, lambda prefix, number: "yes" if "abc" in prefix else "no", field="tip")
    [call] = ctx.sampler.calls
    assert call.prefixes[:4] == ["A", "A", "B", "B"] and all("A\nHint: abc" in p for p in call.prefixes[4:])
    assert [row.group for row in rows] == [0, 0, 0, 0, 2, 2, 1, 1]
    assert [parts(row)[1:] for row in rows[:2]] == [[(Role.POLICY, "no")]] * 2
    assert [parts(row) for row in rows[2:4]] == [[(Role.PROMPT, "A"), (Role.TEACHER_FORCED, "yes")]] * 2
    assert (
        rows[2].tokens == [*ids("Ayes"), tokenizer().eos_token_id]
        and rows[2].stop == Stop.END
        and rows[2].text == "yes"
    )
    assert parts(rows[4])[-1] == (Role.POLICY, "yes") and rows[4].logp_old[-4:] == [-0.1, -0.2, -0.3, -0.4]
    assert {row.uid for row in rows[:6]} == {asked[0].problem.uid}
    assert of_rollouts(list(map(Outcome.of, rows)))["rollout/length_mean"] == (4 * 3 + 2 * 4) / 8, (
        "a token that was sampled counts once"
    )


def test_hints_are_beginnings_of_the_solution():
    asked = [request("A", 2, group=g, solution="abcdefgh") for g in range(2)]
    prefixes = rollouts(asked, low=0.5, high=0.5)[1].sampler.calls[0].prefixes
    assert prefixes[:2] == ["A", "A"] and all(
        "Hint: abcd" in p and "e" not in p.partition("Hint")[2] for p in prefixes[2:]
    )
    prefixes = rollouts(asked, low=1.0, high=1.0)[1].sampler.calls[0].prefixes
    assert all("Hint: abcdefg" in p and "h" not in p.partition("Hint")[2] for p in prefixes[2:])
    drawn = [rollouts(asked, seed=seed, low=0.0, high=1.0)[1].sampler.calls[0].prefixes[2:] for seed in range(8)]
    shown = {prefix.partition("Hint: ")[2] for prefixes in drawn for prefix in prefixes}
    assert len(shown) > 3 and all("a" in hint and "h" not in hint for hint in shown), (
        "a token at least, never the whole of it"
    )


def test_without_rows_after_the_hint_what_was_drawn_counts_where_it_trains():
    rows, _ = rollouts([request("A", 4, tip="abc")], field="tip", hinted_rows=False)
    assert [row.group for row in rows] == [0] * 4 and [row.sampled_count for row in rows] == [2] * 4


def test_without_hints_it_is_single_turn():
    asked = [request("A", 3, group=1, answer="x"), request("B", 1, group=0, answer="x")]
    expected = bind("rlvr.rollout", "single_turn").fn.run(asked, context(lambda prefix, number: str(number)))
    for settings in ({"share": 0.0}, {}, {"field": "tip"}):
        assert rollouts(asked, lambda prefix, number: str(number), **settings)[0] == expected, (
            "a solution of one token has no beginning"
        )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.prompting=paraphrase"], "needs prompting: plain"),
        (["rlvr.rollout.template='{problem}'"], "template: it has no {hint}"),
        (["rlvr.rollout.low=0.8"], "low: 0.8 is above high"),
        (["rlvr.rollout=single_turn"], "needs teacher_forced"),
        (["rlvr.window=0.5"], "rollout: saw cannot do"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[saw]", *overrides]))
