"""Quoted spans as rewards of tokens: the sheet's values, how they reach credit, a run with a real endpoint."""

from __future__ import annotations

import judge_server
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import JudgeScorer, answered

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Role, Stop
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm
from pipelines.rlvr.pack import pack

UID = "a" * 32
PROBLEMS = {
    UID: Problem(
        uid=UID, prompt=[{"role": "user", "content": "?"}], answer="4", verifier="number", source="s", licence="l"
    )
}


def row(text, *more, **about):
    return answered(UID, text, *more, **about)


def paid(rule, *rows, reward=None, **settings):
    own = {"kind": "drlc", "path": "./critic", **settings}
    part, lender = (
        bind("rlvr.reward", own if reward is None else reward(own)).fn,
        JudgeScorer(lambda body: rule(judge_server.parts(body)[3])),
    )
    part.connect(lender)
    part.score(list(rows), PROBLEMS)
    return lender


def with_verifier(own):
    return {"kind": "composite", "terms": [{"kind": "verifier"}, {**own, "weight": 0.2}]}


def test_the_sheet_s_values():
    """Eight tokens, the outcome -1, tokens 1 and 2 good, 4 to 6 bad: last token of a span, and spread over it."""
    rows = [row("abcdefg", score=-1.0) for _ in range(2)]
    paid(lambda text: "Good: bc\nBad: efg", rows[0], reward=with_verifier)
    paid(lambda text: "Good: bc\nBad: efg", rows[1], reward=with_verifier, place="spread")
    assert [r.score for r in rows] == [-1.0, -1.0], "the outcome alone"
    columns = pack(rows, step=0, total_steps=1)
    update = algorithm.Update.of(Rlvr(advantage="reinforce_pp"))
    penalty = algorithm.assign_credit(update, columns)["token_penalty"]
    last, spread = (-penalty[:, 2:]).tolist()
    assert last == pytest.approx([0, 0, 0.2, 0, 0, 0, -0.2, 0])
    assert spread == pytest.approx([0, 0.1, 0.1, 0, -0.2 / 3, -0.2 / 3, -0.2 / 3, 0])
    to_go = algorithm.returns(algorithm.assign_credit(update, columns))[0, 2:]
    assert to_go.tolist() == pytest.approx([-1, -1, -1, -1.2, -1.2, -1.2, -1.2, -1]), (
        "the sheet's r_t, added up from the end"
    )


PARTS = ("so ", "4", "is it", "no", " then")


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([*PARTS, "?!"]), st.booleans())),
)
def test_rewards_of_tokens_add_up_to_the_quotes_that_stand_there(parts, quotes):
    text = "".join(parts)
    reply = "\n".join(f'{"Good" if good else "Bad"}: "{quote}"' for quote, good in quotes) or "Good: none"
    each = row(text)
    paid(lambda shown: reply, each)
    parts_of = each.components
    assert sum(each.token_reward) == pytest.approx(parts_of["spans_good"] - parts_of["spans_bad"])
    assert parts_of["spans_good"] + parts_of["spans_bad"] + parts_of["spans_lost"] == min(20, len(quotes))
    assert each.score == 0.0 and parts_of["judge_unread"] == 0
    assert all(value == 0 for value, role in zip(each.token_reward, each.role, strict=True) if role != Role.POLICY)


def test_quotes_of_the_reasoning_pay_nothing_and_equal_ones_take_the_next_place():
    each = row("<think>4</think>4 or 4")
    lender = paid(lambda text: "Good: 4\nBad: 4\nGood: 4", each)
    assert judge_server.parts({"messages": lender.asked[0]})[3] == "4 or 4"
    start = 2 + len("<think>4</think>")
    assert {i: v for i, v in enumerate(each.token_reward) if v} == {start: 1.0, start + 5: -1.0}
    assert each.components["spans_lost"] == 1


def test_what_cannot_be_read_pays_nothing_and_the_outcome_stays():
    rows = [row("4"), row("5")]
    paid(lambda text: "well", *rows, reward=with_verifier)
    assert [r.score for r in rows] == [1.0, 0.0] and not any(any(r.token_reward) for r in rows)
    assert rows[0].components["drlc.judge_unread"] == 1
    failed = row("4")
    failed.stop = Stop.ERROR
    assert paid(lambda text: "Good: 4", failed).asked == [] and failed.score is None


def test_weights_gates_and_factors_hold_for_tokens():
    def terms(**about):
        return lambda own: {"kind": "composite", "terms": [{"kind": "verifier"}, {**own, **about}]}

    gate = {"term": "verifier", "at_least": 1}
    rows = [row("4 a"), row("5 a")]
    paid(lambda text: "Good: a", *rows, reward=terms(weight=0.5, gate=gate))
    assert [sum(r.token_reward) for r in rows] == [0.5, 0.0]
    each = row("4 a")
    factor = {"kind": "function", "path": "tests_factor:half", "operation": "multiply"}
    import sys
    import types

    sys.modules["tests_factor"] = types.SimpleNamespace(half=lambda completions, **columns: [0.5] * len(completions))
    paid(lambda text: "Good: a", each, reward=lambda own: {"kind": "composite", "terms": ["verifier", own, factor]})
    assert (each.score, sum(each.token_reward)) == (0.5, 0.5)


def test_what_has_no_token_credit_is_refused(tmp_path):
    reward = "rlvr.reward=[verifier, {kind: drlc, model: m, weight: 0.2}]"
    with pytest.raises(
        RecipeError, match=r"composite pays single tokens.*advantage: grpo compares whole rows.*reinforce_pp"
    ):
        check(read_recipe(toys.recipe(tmp_path), [reward]))
    check(read_recipe(toys.recipe(tmp_path), [reward, "rlvr.advantage=reinforce_pp"]))
    with pytest.raises(RecipeError, match="reads single answers"):
        paid(lambda text: "Good: a", row("a", turn_reward=[1.0]))


def test_noise_outside_the_mask_pays_nothing():
    columns = toys.columns_of(toys.rough())
    columns["token_reward"] = torch.where(columns["mask"], 0.25, torch.nan)
    update = algorithm.Update.of(Rlvr(advantage="reinforce_pp"))
    credited = algorithm.assign_credit(update, columns)
    assert credited["advantage"].isfinite().all()
    torch.testing.assert_close(credited["reward"], columns["reward"] + 0.25 * columns["mask"].sum(1))


def vowels_are_good(body):
    text = judge_server.parts(body)[3]
    return "\n".join([f"Good: {letter}" for letter in text if letter in "aeiou"] + ["Bad: zz", "Good: none"])


def run_of_the_preset(tmp_path, start, monkeypatch, *more):
    """History of the preset through the trainer, and the endpoint that it asked."""
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    with judge_server.running(vowels_are_good) as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url)
        toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[drlc]", *more).run()
    return [values for _, values in toys.history(tmp_path / "work")], judge


def test_a_run_with_an_endpoint(tmp_path, start, monkeypatch):
    history, judge = run_of_the_preset(tmp_path, start, monkeypatch, "rlvr.steps=2")
    assert judge.bodies and all(v["mismatch/max"] < 1e-4 for v in history if "mismatch/max" in v)
    for name in ("spans_good", "spans_bad", "spans_lost", "judge_unread"):
        assert any(f"reward_component/drlc.{name}" in values for values in history), name


@pytest.mark.slow
def test_a_policy_learns_what_the_critic_likes(tmp_path, start, monkeypatch):
    spans = "rlvr.reward=[verifier, {kind: drlc, model: critic, weight: 1.0}]"
    more = [
        "rlvr.steps=12",
        "rlvr.prompts=8",
        "rlvr.group_size=8",
        "rlvr.optimizer.learning_rate=0.001",
        "rlvr.divergence=null",
    ]
    history, _ = run_of_the_preset(tmp_path, start, monkeypatch, spans, *more)
    good = [v["reward_component/drlc.spans_good"] for v in history if "reward_component/drlc.spans_good" in v]
    assert sum(good[-3:]) > 1.5 * sum(good[:3])
