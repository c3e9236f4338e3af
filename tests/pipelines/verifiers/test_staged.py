"""Plans in stages: the sheet's values, laws of the formula, rules over values, parts of other verifiers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.verifiers import staged

STAGES = ([1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1])
SCHEMA = {"type": "object", "required": ["days"]}


def plan(soft, hard):
    return json.dumps({"days": [], "soft": soft, "hard": hard})


def info(soft, hard, **more):
    each = lambda name, count: [{"path": f"{name}.{i}", "equals": True} for i in range(count)]  # noqa: E731
    return {"schema": SCHEMA, "soft": each("soft", soft), "hard": each("hard", hard), **more}


def score(soft, hard, weights):
    about = info(len(soft), len(hard), weights=weights)
    return verifiers.verify("staged", plan(soft, hard), "", about).score


def test_the_sheet_s_values():
    soft, hard = [True] * 7 + [False], [True] * 5
    assert [score(soft, hard, weights) for weights in STAGES] == [2.875, 1.0, 0.0]
    assert score([True] * 8, hard, STAGES[0]) == 5.0
    assert verifiers.verify("staged", '{"no": "days"}', "", info(0, 0)).score == 0.0


bits = st.lists(st.booleans(), max_size=5)


@given(bits, bits, st.sampled_from(STAGES), st.data())
def test_a_check_that_is_met_never_costs(soft, hard, weights, data):
    def value(a, b):
        return sum(w * t for w, t in zip(weights, staged.graded(a, b).values(), strict=True))

    assert 0 <= value(soft, hard) <= 5
    if weights == STAGES[2]:
        assert value(soft, hard) in (0, 1)
    unmet = [i for i, met in enumerate(hard) if not met]
    if unmet:
        i = data.draw(st.sampled_from(unmet))
        assert value(soft, [*hard[:i], True, *hard[i + 1 :]]) >= value(soft, hard)


@pytest.mark.parametrize(
    ("rule", "plan", "met"),
    [
        ({"path": "a.*.b", "of": "sum", "at_most": 3}, {"a": [{"b": 1}, {"b": 2}]}, True),
        ({"path": "a.*.b", "of": "sum", "at_most": 3}, {"a": [{"b": 1}, {"b": "2"}]}, False),
        ({"path": "a.*", "of": "distinct", "equals": 2}, {"a": ["x", "y", "x"]}, True),
        ({"path": "a.*", "of": "count", "at_least": 4}, {"a": [1, 2, 3]}, False),
        ({"path": "a.*", "one_of": ["x", 1]}, {"a": ["x", 1]}, True),
        ({"path": "a.*", "one_of": ["x", 1]}, {"a": ["x", True]}, False),
        ({"path": "a.*", "equals": 1}, {"a": []}, False),
        ({"path": "missing", "at_most": 1}, {}, False),
        ({"path": "a", "at_most": 1}, {"a": True}, False),
        ({"path": "a", "at_least": 1}, {"a": 10**400}, False),
    ],
)
def test_rules(rule, plan, met):
    assert staged.holds(rule, plan) is met


def test_other_verifiers_are_checks_too():
    about = {
        "schema": SCHEMA,
        "soft": [{"verifier": "regex", "answer": r"(?s)\{.*", "info": {}}],
        "hard": [{"verifier": "json_schema", "info": {"schema": {"required": ["end"]}}}],
    }
    verdict = verifiers.verify("staged", '{"days": []}', "", about)
    assert (verdict.score, verdict.status) == (2.0, "incorrect")
    assert verdict.components == {"schema": 1, "soft": 1, "hard": 0, "all_soft": 1, "all_hard": 0, "all": 0}
    assert verifiers.verify("staged", '{"days": [], "end": 1}', "", about).correct


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"schema": SCHEMA, "hard": [{"path": "a"}]},
        {"schema": SCHEMA, "hard": [{"path": "a", "equal": 1}]},
        {"schema": SCHEMA, "hard": [{"path": "a", "at_most": "1"}]},
        {"schema": SCHEMA, "hard": [{"verifier": "staged", "info": {}}]},
        {"schema": SCHEMA, "hard": ["x"]},
        {"schema": SCHEMA, "soft": [{"path": "a", "equals": 1}] * 201},
        {"schema": SCHEMA, "weights": [1, 1]},
        {"schema": SCHEMA, "weights": [1, 1, 1, 1, -1]},
        {"schema": {"type": "nothing"}},
    ],
)
def test_a_row_that_cannot_be_read_is_unscored(about):
    verdict = verifiers.verify("staged", '{"days": []}', "", about)
    assert (verdict.score, verdict.status) == (None, "verifier_failed")


def test_an_unknown_part_is_named():
    about = {"schema": SCHEMA, "hard": [{"verifier": "numbr"}]}
    with pytest.raises(DataError, match="Did you mean 'number'"):
        verifiers.verify("staged", '{"days": []}', "", about)


def test_a_bad_row_costs_no_other_row():
    rows = [("staged", plan([True], []), "", info(1, 0)), ("staged", "{}", "", {}), ("exact", "a", "a", {})]
    assert [v.status for v in verifiers.verify_many(rows)] == ["correct", "verifier_failed", "correct"]


def test_the_paper_s_stages_are_a_composite_reward():
    def term(name, weights, last=None):
        moves = {} if last is None else {"weight": {"start": 1, "end": 0, "after": last, "steps": 1}}
        return {"kind": "verifier", "name": name, "verifier": "staged", "info": {"weights": weights}, **moves}

    terms = [term("shares", [1, 1, 0, 0, 0], 39), term("passes", [0, 0, 1, 1, 0], 79), term("all", [0, 0, 0, 0, 1])]
    reward = bind("rlvr.reward", {"kind": "composite", "terms": terms}).fn
    uid = "a" * 32
    asked = Problem(
        uid=uid, prompt=[{"role": "user", "content": "a trip"}], answer="", verifier="staged", source="s", licence="l",
        info=info(8, 5),
    )  # fmt: skip
    values = []
    for step in (0, 39, 40, 79, 80):
        reward.step = step
        rows = [answer(uid, 0, plan([True] * 7 + [False], [True] * 5))]
        reward.score(rows, {uid: asked})
        values.append(rows[0].score)
    assert values == [2.875, 2.875, 1.0, 1.0, 0.0]
