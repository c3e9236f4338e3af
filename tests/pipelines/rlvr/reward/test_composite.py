"""Rewards made of several terms."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import sys
import types

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer
from scripted import conversation

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind, load, names
from pipelines.data.records import Problem, Stop
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import scoring

UID = "a" * 32
PROBLEMS = {
    UID: Problem(
        uid=UID, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="s", licence="l"
    )
}


def brief(prompts, completions, **_):
    """Share of ten letters that are left; None for a question."""
    texts = [c[0]["content"] for c in completions]
    return [None if t.endswith("?") else max(0.0, 1 - len(t) / 10) for t in texts]


BRIEF = {"kind": "function", "path": f"{__name__}:brief"}


def composite(*terms):
    return bind("rlvr.reward", Rlvr(reward=list(terms)).reward).fn


def scored(reward, *texts):
    rows = [answer(UID, 0, text) for text in texts]
    reward.score(rows, PROBLEMS)
    return rows


def test_values_are_weighted_and_shown():
    rows = scored(composite("verifier", {**BRIEF, "weight": 0.5}), "4", "is it 4?", "12345")
    assert rows[0].score == pytest.approx(1 + 0.5 * 0.9)
    assert rows[0].components == {"verifier": 1.0, "brief": pytest.approx(0.9)}
    assert rows[1].score is None, "a function that says None leaves the row unscored"
    assert rows[2].score == pytest.approx(0.5 * 0.5)
    assert [r.correct for r in rows] == [True, True, False]
    assert [r.status for r in rows] == ["correct", "correct", "incorrect"]


def test_what_each_term_adds_is_told_where_all_are_added():
    gated = {
        "kind": "verifier",
        "name": "gated",
        "weight": 2.0,
        "gate": {"term": "brief", "at_least": 0.95, "otherwise": -1.0},
    }
    reward = composite("verifier", {**BRIEF, "weight": 0.5, "unscored": "zero"}, gated)
    rows = scored(reward, "4", "is it 4?")
    assert reward.term_names == ["verifier", "brief", "gated"]
    assert [row.terms for row in rows] == [[1.0, pytest.approx(0.45), -2.0], [1.0, 0.0, -2.0]]
    assert [row.score for row in rows] == [pytest.approx(sum(row.terms)) for row in rows]
    (row,) = scored(composite("verifier", BRIEF), "is it 4?")
    assert row.score is None and row.terms is None
    multiplied = composite("verifier", {**BRIEF, "operation": "multiply"})
    (row,) = scored(multiplied, "4")
    assert multiplied.term_names == () and row.terms is None and row.score == pytest.approx(0.9)


def test_a_term_may_be_without_a_value():
    (row,) = scored(composite("verifier", {**BRIEF, "unscored": "zero"}), "is it 4?")
    assert row.score == 1 and row.components == {"verifier": 1.0}


def test_a_gate_looks_at_a_term_before_it():
    gate = {"term": "verifier", "at_least": 1, "otherwise": -0.5}
    rows = scored(composite("verifier", {**BRIEF, "gate": gate}), "4", "5")
    assert [r.score for r in rows] == [pytest.approx(1.9), -0.5]
    assert rows[1].components["brief"] == pytest.approx(0.9), "the metric is the value, not what the gate made of it"


def test_a_gate_is_shut_where_its_term_has_no_value():
    known = {**BRIEF, "name": "brief", "unscored": "zero"}
    gated = {**BRIEF, "name": "gated", "gate": {"term": "brief", "at_most": 1}}
    reward = composite("verifier", known, gated)
    assert reward.total({"verifier": 1.0, "brief": None, "gated": 5.0}) == 1.0
    assert reward.total({"verifier": 1.0, "brief": 0.5, "gated": 5.0}) == 6.5
    assert reward.total({"verifier": None, "brief": 0.5, "gated": 5.0}) is None


def test_a_factor_multiplies_what_stands_before_it():
    rows = scored(composite({"kind": "verifier", "weight": 2.0}, {**BRIEF, "operation": "multiply"}), "4", "5")
    assert [r.score for r in rows] == [pytest.approx(1.8), 0.0]


def test_successive_geometric_terms_enter_one_mean_with_what_stands_before_them():
    mean = {**BRIEF, "operation": "geometric"}
    rows = scored(composite("verifier", mean, {**mean, "name": "again", "weight": 0.5}), "4", "5", "4" * 10)
    assert rows[0].score == pytest.approx((1 * 0.9 * 0.45) ** (1 / 3)), "not the mean of a mean"
    assert rows[1].score == rows[2].score == 0.0, "one term of nothing makes nothing"
    assert rows[0].terms is None, "no sum"
    (row,) = scored(composite("verifier", mean, {**BRIEF, "name": "added"}, {**mean, "name": "last"}), "4")
    assert row.score == pytest.approx(((0.9**0.5 + 0.9) * 0.9) ** 0.5), "a sum between them begins another mean"
    (row,) = scored(composite("verifier", {**mean, "unscored": "row"}), "is it 4?")
    assert row.score is None


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=5))
def test_a_geometric_mean_lies_between_its_sizes_and_is_negative_where_a_value_is(values):
    reward = composite(
        *({**BRIEF, "name": f"t{n}", "operation": "geometric" if n else "add"} for n in range(len(values)))
    )
    total = reward.total({f"t{n}": value for n, value in enumerate(values)})
    sizes = [abs(value) for value in values]
    assert min(sizes) - 1e-9 <= abs(total) <= max(sizes) + 1e-9
    assert total <= 0 if min(values) < 0 else total >= 0
    if min(sizes) > 1e-3:
        assert abs(total) == pytest.approx(math.exp(sum(map(math.log, sizes)) / len(sizes)))


FORM = {"kind": "verifier", "verifier": "regex", "answer": r"<\d>", "weight": 0.25, "name": "form"}


@pytest.mark.parametrize("text,answered,formed", [("<4>", 1, 1), ("4", 1, 0), ("<5>", 0, 1), ("5", 0, 0)])
def test_form_and_answer_are_judged_apart(text, answered, formed):
    (row,) = scored(composite("verifier", FORM), text)
    assert (
        row.score == answered + 0.25 * formed
        and row.correct is bool(answered)
        and row.status == ("correct" if answered else "incorrect")
    )
    assert (row.components["verifier"], row.components["form"]) == (answered, formed)


def test_what_the_infrastructure_failed_stays_unscored():
    row = answer(UID, 0, "4")
    row.stop = Stop.ERROR
    composite("verifier", {**BRIEF, "unscored": "row"}).score([row], PROBLEMS)
    assert row.score is None and row.correct is None


def test_the_score_of_an_environment_is_the_verifier_s_term():
    row = answer(UID, 0, "whatever", score=0.7, correct=True)
    composite({"kind": "verifier", "weight": 10.0}).score([row], PROBLEMS)
    assert row.score == pytest.approx(7.0) and row.correct


def test_a_weight_moves_with_the_steps_and_survives_a_restart():
    term = {"kind": "verifier", "weight": {"start": 1.0, "end": 0.0, "steps": 4, "after": 2}}
    reward = composite(term)
    seen = []
    for _ in range(8):
        seen.append(reward.total({"verifier": 1.0}))
        reward.on_batch({})
        restarted = composite(term)
        restarted.load_state_dict(json.loads(json.dumps(reward.state_dict())))
        assert restarted.total({"verifier": 1.0}) == reward.total({"verifier": 1.0})
    assert seen == [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_the_trainer_learns_from_the_sum(tmp_path, start):
    """A run that is stopped and taken up: the terms' metrics, a sum whose weight moves on, the weights of a run without the stop."""
    term = "{kind: verifier, name: short, verifier: regex, answer: '.{0,6}', weight: {start: 0.0, end: 1.0, steps: 4}}"
    more = (f"rlvr.reward=[verifier, {term}]", "rlvr.prompts=8", "rlvr.steps=4", "rlvr.commit.every=1")
    weights = []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        build = functools.partial(toys.trainer, folder, start, toys.recipe(folder), *more)
        if name == "stopped":
            made = toys.run_stopped(build)
        else:
            made = build()
            made.run()
        weights.append(torch.cat([p.detach().flatten() for p in made.learner.model.parameters()]))
        steps = [line["values"] for line in toys.spool(folder / "work") if line["kind"] == "metrics"]
        assert len(steps) == 4
        for step, metrics in enumerate(steps):
            short = metrics["reward_component/short"]
            assert 0 < short <= 1
            assert metrics["reward/mean"] == pytest.approx(metrics["reward_component/verifier"] + short * step / 4)
    assert torch.equal(*weights)


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=6))
def test_without_gates_it_is_the_scalar_product(pairs):
    reward = composite(*({"kind": "verifier", "name": f"t{i}", "weight": w} for i, (w, _) in enumerate(pairs)))
    total = reward.total({f"t{i}": v for i, (_, v) in enumerate(pairs)})
    assert total == pytest.approx(math.fsum(w * v for w, v in pairs), abs=1e-9)


def test_rewards_of_turns_say_so():
    """So that they are refused where a rollout has none, alone and as terms."""
    for name in set(names("rlvr.reward")) - {"composite", "model"}:
        text = inspect.getsource(load("rlvr.reward", name))
        assert load("rlvr.reward", name).pays_turns == bool(re.search(r"scored_(with_)?turns\(", text)), name


def episode(earlier, outcome, **more):
    row = conversation(UID, "go", "x", "on", "x", "4", earlier=earlier, outcome=outcome, **more)
    row.score = sum(row.turn_reward)
    return row


def test_turns_are_paid_what_the_terms_pay_them():
    """Weights, gates and factors hold for each turn; what is paid for the whole answer is the score's alone."""
    calls = [[], [{"name": "f", "arguments": {}, "outcome": "malformed", "text": ""}], []]
    turns = {"kind": "gtpo_turn", "penalty": 0.5, "weight": 2.0, "name": "calls"}
    reward = composite({"kind": "verifier", "weight": 0.5}, turns)
    row = episode(0.25, 1.0, turn_calls=calls, turn_belief=[0.25, 0.0, 0.0])
    scoring.score(reward, [row], PROBLEMS)
    assert row.turn_reward == [0.625, -0.375, 2.5] and row.score == sum(row.turn_reward) and row.turn_belief[0] == 0.625
    assert row.turn_terms == [0.125, 0.5, 0.125, -0.5, 0.5, 2.0], "turn by turn, what each term pays it"
    assert sum(row.turn_terms[::2]) == row.terms[0] and sum(row.turn_terms[1::2]) == row.terms[1]
    assert reward.pays_turns and row.turn_components == [{"format": -0.0}, {"format": -0.5}, {"format": -0.0}]
    gate = {"term": "verifier", "at_least": 9, "otherwise": -1.0}
    row = episode(0.25, 1.0, turn_calls=calls)
    scoring.score(composite("verifier", {**turns, "gate": gate}), [row], PROBLEMS)
    assert row.turn_reward == [0.25, 0.25, 1.0] and row.score == -0.5
    assert row.turn_terms == [0.25, 0.0, 0.25, 0.0, 1.0, 0.0] and row.terms == [1.5, -2.0], "a closed gate pays no turn"
    row = episode(0.25, 1.0)
    plain = composite("verifier", BRIEF)
    scoring.score(plain, [row], PROBLEMS)
    assert row.turn_reward == [0.25, 0.25, 1.0] and row.score == pytest.approx(2.4) and not plain.pays_turns
    assert row.turn_terms == [0.25, 0.0, 0.25, 0.0, 1.0, 0.0]
    row = episode(0.25, 1.0)
    scoring.score(composite("verifier", {**BRIEF, "operation": "multiply"}), [row], PROBLEMS)
    assert row.turn_reward == pytest.approx([0.225, 0.225, 0.9]) and row.score == pytest.approx(1.35)
    assert row.terms is None and row.turn_terms is None, "no sum"
    row = episode(0.25, 1.0)
    scoring.score(composite("verifier", {**BRIEF, "operation": "geometric"}), [row], PROBLEMS)
    assert row.turn_reward == [0.0, 0.0, 0.0] and row.score == pytest.approx((1.5 * 0.9) ** 0.5)


def test_a_score_in_the_place_of_the_environment_s_takes_back_what_it_paid_the_turns():
    row, kept = episode(0.25, 1.0, turn_belief=[0.25, 0.0, 0.0]), episode(0.25, 1.0)
    scoring.score(bind("rlvr.reward", BRIEF).fn, [row], PROBLEMS)
    assert row.turn_reward == row.turn_belief == [0.0, 0.0, 0.0] and row.score != 1.5
    scoring.score(bind("rlvr.reward", "thinkdial").fn, [kept], PROBLEMS)
    assert kept.turn_reward == [0.25, 0.25, 1.0] and kept.score == 2.0


@pytest.mark.parametrize(
    "terms,words",
    [
        (["verifier", "verifier"], r"terms\.1: a term called verifier stands before"),
        (["nothing"], r"terms\.0: no method called 'nothing'"),
        ([{"kind": "verifier", "gate": {"term": "x", "at_least": 1}}], r"terms\.0\.gate\.term: no term before this"),
        (["verifier", {**FORM, "gate": {"term": "verifer", "at_least": 1}}], "Did you mean 'verifier'"),
        (["verifier", {**FORM, "gate": {"term": "verifier"}}], r"terms\.1\.gate: .*at_least, at_most or both"),
        ([{"kind": "verifier", "operation": "multiply"}], r"terms\.0\.operation: the first term has nothing"),
        ([{"kind": "verifier", "operation": "geometric"}], r"terms\.0\.operation: the first term has nothing to take"),
        ([{"kind": "verifier", "weight": "much"}], r"terms\.0\.weight"),
        ([{"kind": "verifier", "weigth": 1}], r"terms\.0\.weigth: no such setting"),
        ([{"kind": "composite", "terms": ["verifier"]}], r"terms\.0: a composite reward cannot be a term"),
        ([{"kind": "verifier", "verifier": "regexp"}], r"terms\.0\.verifier: no verifier called 'regexp'"),
        ([{"kind": "verifier", "answer": "4"}], r"terms\.0\.verifier: answer and info are those of another"),
        ([{"kind": "function", "path": "no_such_module:f"}], r"terms\.0\.path: there is no module 'no_such_module'"),
    ],
)
def test_what_is_wrong_is_named(terms, words):
    with pytest.raises(RecipeError, match=words):
        composite(*terms)


def test_a_term_with_sources_pays_their_prompts_alone():
    """Of other sources it is not asked; the rest is summed, multiplied and averaged as if it were not there."""
    called = []

    def ask(prompts, completions, **_):
        called.append(len(completions))
        return [0.5 for _ in completions]

    sys.modules["asking_toy"] = types.SimpleNamespace(ask=ask)
    asking = {"kind": "function", "path": "asking_toy:ask", "name": "asked", "sources": ["sums", "s"], "weight": 2.0}

    def rows_of(*terms):
        rows = [answer(UID, group, "4") for group in range(3)]
        for row, source in zip(rows, ("sums", "words", "s"), strict=True):
            row.source = source
        composite(*terms).score(rows, PROBLEMS)
        return rows

    rows = rows_of("verifier", asking)
    assert [row.score for row in rows] == [2.0, 1.0, 2.0] and called == [2]
    assert [row.terms for row in rows] == [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    assert ["asked" in row.components for row in rows] == [True, False, True]
    for operation in ("multiply", "geometric"):
        rows = rows_of({"kind": "verifier", "weight": 4.0}, asking | {"operation": operation})
        assert [row.score for row in rows] == [4.0 if operation == "multiply" else 2.0, 4.0, rows[0].score]
    also = {"kind": "verifier", "name": "also", "gate": {"term": "asked", "at_least": 1}, "sources": ["s"]}
    assert [row.score for row in rows_of("verifier", asking, also)] == [2.0, 1.0, 2.0]
    assert [row.score for row in rows_of(asking)] == [1.0, 0.0, 1.0]
    preferred = {"kind": "verifier", "name": "preferred", "weight": "preference", "sources": ["another"]}
    assert [row.score for row in rows_of("verifier", preferred)] == [1.0] * 3, "the others write none"


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ([{"kind": "verifier", "sources": []}], r"terms\.0\.sources: List should have at least 1"),
        ([{"kind": "verifier", "sources": ["a"]}, {**BRIEF, "operation": "multiply"}], "some prompts that brief pays have none"),
        ([{"kind": "verifier", "sources": ["a"]}, {**BRIEF, "operation": "geometric", "sources": ["a", "b"]}], "have none"),
        (
            [{"kind": "verifier", "sources": ["a"]}, {**BRIEF, "gate": {"term": "verifier", "at_least": 1}}],
            r"terms\.1\.sources: the gate goes by verifier, which pays fewer sources",
        ),
    ],
)  # fmt: skip
def test_sources_for_which_a_term_has_nothing_to_go_by_are_refused(terms, problem):
    with pytest.raises(RecipeError, match=problem):
        composite(*terms)


def test_sources_may_be_covered_by_several_terms():
    composite(
        {"kind": "verifier", "sources": ["a"]},
        {**BRIEF, "sources": ["b"]},
        {"kind": "verifier", "name": "c", "operation": "multiply", "sources": ["a", "b"]},
    )
