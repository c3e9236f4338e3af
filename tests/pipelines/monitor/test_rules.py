"""Every rule fires on the shape it is for, stays silent on noise, and goes on from its state as if nothing had happened.

A rule sees a run as a series of metrics. A planted series has the shape of a fault; a healthy one has the spread, trends and
changes of a run that learns. The rate of false alarms is measured on simulated healthy runs.
"""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.contract.card import CHECKED
from pipelines.contract.catalogue import card, load, names
from pipelines.contract.monitor import Monitor, StepRollouts
from pipelines.data.records import Stop, Trajectory
from pipelines.monitor.length_reward import within_groups
from pipelines.monitor.repetition import repeated
from pipelines.papers import goodhart as goodhart_file
from pipelines.recipe.monitors import Rollback
from pipelines.recipe.settings import Rlvr
from pipelines.stage.monitors import Monitors

STEPS, ROWS = 200, 256
"""Of a simulated run."""
SPECS = {
    "metric": {"metric": "loss/policy", "above": 3.0, "falls_by": 2.0, "window": 5},
    "kl_budget": {"nats": 0.1},
    "reward_hacking": {"verifier": "exact"},
    "goodhart": {"verifier": "exact"},
}
"""What a rule cannot do without."""


def spec(kind, **changes):
    return {"kind": kind, **SPECS.get(kind, {}), **changes}


def healthy(seed, steps=STEPS):
    """A run that learns, and the noise of its metrics: 256 rollouts a step in groups of 8."""
    draw = np.random.default_rng(seed)
    start, end = draw.uniform(0.02, 0.7), draw.uniform(0.7, 0.98)
    progress = 1 / (1 + np.exp(-(np.arange(steps) - draw.uniform(20, 120)) / draw.uniform(5, 40)))
    p = start + (end - start) * progress
    seen = draw.binomial(ROWS, p) / ROWS
    length = 40 * draw.uniform(0.3, 5) * (1 + draw.uniform(-0.2, 0.3) * progress)
    series = {
        "reward/correct": seen,
        "reward/mean": seen,
        "reward/group_std": np.sqrt(p * (1 - p)) * 0.8 + draw.normal(0, 0.02, steps),
        "policy/entropy": draw.uniform(0.3, 2)
        * (1 - draw.uniform(0.2, 0.7) * progress)
        * np.exp(draw.normal(0, 0.05, steps)),
        "optimizer/grad_norm": draw.uniform(0.1, 3) * np.exp(draw.normal(0, 0.35, steps)),
        "rollout/length_mean": length * np.exp(draw.normal(0, 0.05, steps)),
        "rollout/repetition": np.clip(draw.uniform(0, 0.4) + draw.normal(0, 0.02, steps), 0, 1),
        "reward/length_correlation": draw.uniform(-0.7, 0.7) + draw.normal(0, 0.08, steps),
        "mismatch/mean": 10 ** draw.uniform(-7, -2) * np.exp(draw.normal(0, 0.2, steps)),
        "policy/kl_to_reference": 0.05 * progress + np.abs(draw.normal(0, 0.003, steps)),
        "loss/policy": draw.normal(0, 0.3, steps),
        "hidden/exact": draw.binomial(128, p * 0.95) / 128,
        "hidden/exact_reward": None,
        "goodhart/slope": draw.normal(0.9, 0.05, steps),
        "goodhart/threshold": np.full(steps, 0.6),
    }
    series["rollout/entropy"] = series["policy/entropy"] * np.exp(draw.normal(0, 0.05, steps))
    series["reward/equal_share"] = np.clip(draw.binomial(32, np.abs(1 - 4 * p * (1 - p)) ** 2) / 32, 0, 1)
    series["reward/unscored_share"] = draw.binomial(ROWS, 0.01, steps) / ROWS
    series["rollout/truncated_share"] = draw.binomial(ROWS, draw.uniform(0, 0.2), steps) / ROWS
    series["reward/paid_wrong_share"] = draw.binomial(ROWS, 0.02, steps) / ROWS
    series["reward/of_correct"], series["reward/of_incorrect"] = np.ones(steps), draw.normal(0.1, 0.02, steps)
    series["optimizer/learning_rate"] = np.full(steps, 10 ** draw.uniform(-6, -3))
    series["optimizer/skipped_steps"] = np.cumsum(draw.random(steps) < 0.005).astype(float)
    series["loss/train"] = (
        draw.uniform(0.3, 3)
        * (0.4 + 0.6 * np.exp(-np.arange(steps) / draw.uniform(5, 40)))
        * np.exp(draw.normal(0, 0.05, steps))
    )
    series["hidden/exact_reward"] = np.clip(series["hidden/exact"] + draw.normal(0.03, 0.02, steps), 0, 1)
    series["answers/fallen_share"] = draw.binomial(64, 0.1 * progress) / 64
    series["tampering/paid_beyond_true"] = draw.uniform(0, 0.05, steps)
    series |= {f"tampering/{name}": np.zeros(steps) for name in ("canaries_paid", "broken_verdicts", "changed_files")}
    return series


def ramp(low, high, start=60, length=20, steps=STEPS):
    """From `low` to `high` between two steps."""
    return low + (high - low) * np.clip((np.arange(steps) - start) / length, 0, 1)


PLANTED = {
    "metric": {"loss/policy": ramp(0, 4)},
    "entropy_collapse": {"rollout/entropy": ramp(1.0, 0.02), "reward/correct": np.full(STEPS, 0.4)},
    "entropy_explosion": {"rollout/entropy": ramp(0.8, 4.0), "reward/correct": np.full(STEPS, 0.4)},
    "flat_reward": {"reward/equal_share": ramp(0.3, 1.0), "reward/correct": np.full(STEPS, 0.1)},
    "no_progress": {"reward/mean": np.random.default_rng(0).binomial(ROWS, 0.3, STEPS) / ROWS, "reward/correct": np.full(STEPS, 0.3)},
    "reward_against_verifier": {"reward/paid_wrong_share": ramp(0.0, 0.9), "reward/correct": np.full(STEPS, 0.05)},
    "truncation": {"rollout/truncated_share": ramp(0.02, 0.94)},
    "instability": {"reward/correct": ramp(0.5, 0.0)},
    "flat_loss": {"loss/train": np.random.default_rng(0).normal(0.7, 0.05, STEPS)},
    "length_drift": {"rollout/length_mean": ramp(50, 200), "reward/correct": np.full(STEPS, 0.4)},
    "length_reward": {"rollout/length_mean": ramp(50, 120), "reward/length_correlation": np.full(STEPS, 0.7)},
    "repetition": {"rollout/repetition": ramp(0.05, 0.8)},
    "mismatch_growth": {"mismatch/mean": ramp(1e-3, 2e-2)},
    "kl_budget": {"policy/kl_to_reference": ramp(0.0, 0.5)},
    "echo_trap": {"reward/group_std": ramp(0.4, 0.05), "optimizer/grad_norm": ramp(1, 30, 70, 5), "reward/correct": np.full(STEPS, 0.3)},
    "reward_hacking": {"hidden/exact_reward": ramp(0.3, 0.9), "hidden/exact": np.full(STEPS, 0.3)},
    "goodhart": {"goodhart/slope": ramp(0.9, 0.1)},
    "answer_mass": {"answers/fallen_share": ramp(0.05, 0.7)},
    "tampering": {"tampering/canaries_paid": ramp(0.0, 0.4)},
}  # fmt: skip


FROM_THE_START = {"no_progress": (150, 160), "flat_loss": (40, 60)}
"""Rules whose planted fault begins with the run: the alarm comes after the first of these steps, at the second at the latest."""


def alarms(series, *specs, steps=STEPS):
    """(step, monitor) of the alarms that a run of these metrics raises."""
    return [(alarm.step, alarm.monitor) for alarm in raised(series, *specs, steps=steps)]


def raised(series, *specs, steps=STEPS):
    """The alarms that a run of these metrics raises."""
    monitors = Monitors("rlvr", list(specs), Rollback())
    return [
        alarm
        for i in range(steps)
        for alarm in monitors.judge(i + 1, {name: float(values[i]) for name, values in series.items()})
    ]


def test_every_rule_has_a_planted_fault_and_a_card():
    assert sorted(PLANTED) == names("monitor")
    for name in names("monitor"):
        rule = load("monitor", name)
        assert issubclass(rule, Monitor) and card(rule).title and len(rule.__doc__) > 100
        assert card(rule).checked in CHECKED


@pytest.mark.parametrize("kind", sorted(PLANTED))
def test_a_planted_fault_is_flagged_after_it_began(kind):
    for seed in range(6):
        series = healthy(seed) | PLANTED[kind]
        steps = [step for step, _ in alarms(series, spec(kind))]
        assert steps, seed
        began, last = FROM_THE_START.get(kind, (60, 110))
        assert began < steps[0] <= last, (seed, steps)


OTHER_FAULTS = {
    "length_drift": [{"rollout/length_mean": ramp(50, 5), "reward/correct": np.full(STEPS, 0.4)}],
    "length_reward": [{"rollout/length_mean": ramp(50, 10), "reward/length_correlation": np.full(STEPS, -0.7)}],
    "instability": [
        {"optimizer/learning_rate": ramp(1e-3, 5.0)}, {"loss/train": ramp(0.5, 3.0)},
        {"loss/train": np.full(STEPS, math.inf)}, {"policy/kl_to_reference": ramp(0.0, 3.0)},
        {"optimizer/skipped_steps": np.arange(STEPS, dtype=float)}, {"optimizer/grad_norm": ramp(1, 900)},
    ],
    "flat_reward": [
        {"reward/equal_share": np.ones(STEPS), "reward/correct": np.full(STEPS, correct), "reward/mean": np.full(STEPS, reward)}
        for correct, reward in ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    ] + [{"reward/unscored_share": np.ones(STEPS)}],
    "tampering": [{f"tampering/{name}": ramp(0.0, 5.0)} for name in ("paid_beyond_true", "broken_verdicts", "changed_files")],
    "reward_against_verifier": [{"reward/of_incorrect": ramp(0.1, 3.0)}],
}  # fmt: skip
"""More signs of a rule: lengths that shrink, rewards of 0 and of 1, a loss that is not finite."""

REMEDY = re.compile(
    r"\. (?:(?:The problems|Every answer|No answer)[^.:]*: )?((?:Start again|Look|Lower|Raise|Read|Compare|Take|take|look|read)\b.{10,})$"
)
"""An alarm ends with what to do, as an order."""


@pytest.mark.parametrize("kind", sorted(PLANTED))
def test_an_alarm_ends_with_what_to_do_in_names_that_recipes_have(kind):
    for planted in [PLANTED[kind], *OTHER_FAULTS.get(kind, [])]:
        texts = [alarm.text for alarm in raised(healthy(0) | planted, spec(kind))]
        assert texts, planted
        for text in texts:
            said = REMEDY.search(text)
            assert said, text
            for field in re.findall(r"\brlvr((?:\.[a-z_]+)+)", said[1]):
                assert _has_field(Rlvr, field[1:].split(".")), field
            for slot, name in re.findall(r"\b(shaping|filter|credit|divergence|objective): (?:{kind: )?(\w+)", said[1]):
                assert name in names(f"rlvr.{slot}"), (slot, name)


def _has_field(model, path):
    """Whether nested settings have a field."""
    if path[0] not in model.model_fields:
        return False
    inner = model.model_fields[path[0]].annotation
    return len(path) == 1 or (isinstance(inner, type) and _has_field(inner, path[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(PLANTED))
@pytest.mark.few(5)
def test_healthy_runs_raise_few_alarms(kind):
    """Of 100 healthy runs of 200 steps, at most one raises an alarm."""
    count = sum(bool(alarms(healthy(seed), spec(kind))) for seed in range(100))
    assert count <= 1, f"{count} of 100"


@pytest.mark.slow
@pytest.mark.long
def test_all_rules_together_raise_few_alarms():
    """All rules at once, on 1,000 other runs: at most 1 % raise an alarm."""
    kinds = [spec(kind) for kind in names("monitor")]
    count = sum(bool(alarms(healthy(seed), *kinds)) for seed in range(1000, 2000))
    assert count <= 10, f"{count} of 1000"


@pytest.mark.parametrize("kind", sorted(PLANTED))
@settings(max_examples=8)
@given(cut=st.integers(0, STEPS), seed=st.integers(0, 10_000))
def test_a_restart_changes_no_alarm(kind, cut, seed):
    series = healthy(seed) | PLANTED[kind]
    first = Monitors("rlvr", [spec(kind)], Rollback())
    rows = [{name: float(values[i]) for name, values in series.items()} for i in range(STEPS)]
    before = [alarm for i in range(cut) for alarm in first.judge(i + 1, rows[i])]
    second = Monitors("rlvr", [spec(kind)], Rollback())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after = [alarm for i in range(cut, STEPS) for alarm in second.judge(i + 1, rows[i])]
    whole = Monitors("rlvr", [spec(kind)], Rollback())
    assert before + after == [alarm for i in range(STEPS) for alarm in whole.judge(i + 1, rows[i])]


def test_what_explains_a_change_is_no_alarm():
    solved = {"policy/entropy": ramp(1.0, 0.01), "reward/correct": ramp(0.3, 0.97), "reward/group_std": ramp(0.4, 0.02)}
    solved |= {"optimizer/grad_norm": ramp(1, 30, 90, 5)}
    assert not alarms(healthy(0) | solved, spec("entropy_collapse"), spec("echo_trap"))
    thinking = {"rollout/length_mean": ramp(50, 500), "reward/correct": ramp(0.3, 0.6, 60, 20)}
    assert not alarms(healthy(0) | thinking, spec("length_drift"))
    shrinking = {"rollout/length_mean": ramp(50, 10), "reward/length_correlation": np.full(STEPS, 0.7)}
    assert not alarms(healthy(0) | shrinking, spec("length_reward")), "against what is paid"
    assert alarms(healthy(0) | shrinking | {"reward/length_correlation": np.full(STEPS, -0.7)}, spec("length_reward"))
    both = {"hidden/exact_reward": ramp(0.3, 0.9), "hidden/exact": ramp(0.2, 0.7)}
    assert not alarms(healthy(0) | both, spec("reward_hacking"))
    assert not alarms(healthy(0) | {"reward/group_std": ramp(0.4, 0.05)}, spec("echo_trap")), "a cliff without a spike"
    assert not alarms(healthy(0) | {"optimizer/grad_norm": ramp(1, 30)}, spec("echo_trap")), "a spike without a cliff"


def test_each_limit_of_the_rule_on_a_metric():
    def first(values, **limits):
        series = {"loss/policy": np.array(values, float)}
        return [
            step for step, _ in alarms(series, {"kind": "metric", "metric": "loss/policy", **limits}, steps=len(values))
        ]

    assert first([1, 2, 3, 4], above=2) == [3], "at the limit is not above it; once for each time"
    assert first([1, 2, 3, 1, 3], above=2) == [3, 5]
    assert first([1, 3, 3, 3], above=2, patience=3) == [4]
    assert first([1, 3, 1, 3, 3], above=2, patience=2) == [5]
    assert first([3, 3, 3, 3], above=2, after=2) == [3]
    assert first([3, 2, 1], below=2) == [3]
    assert first([1, 3, 5, 1], above=2.5, window=2) == [3]
    assert first([0, 1, 2, 3, 9], rises_by=2.5, over=2) == [5]
    assert first([9, 8, 7, 2], falls_by=3, over=1) == [4]
    assert first([1, math.nan, 3, 3], above=2, patience=2) == [4], "a step without the metric is passed over"


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=12, max_size=60),
    st.integers(1, 5),
    st.floats(-1e3, 1e3),
)
def test_the_rule_on_a_metric_is_a_plain_loop(values, patience, limit):
    expected, run = [], 0
    for i, value in enumerate(values):
        run = run + 1 if value > limit else 0
        expected += [i + 1] if run == patience else []
    series = {"loss/policy": np.array(values)}
    found_steps = alarms(
        series, {"kind": "metric", "metric": "loss/policy", "above": limit, "patience": patience}, steps=len(values)
    )
    assert [step for step, _ in found_steps] == expected


def row(score, tokens, group=0, text="", max_tokens=50):
    return Trajectory(
        uid="u", group=group, tokens=[1, *tokens], role=[0, *[3] * len(tokens)], logp_old=[0.0] * (1 + len(tokens)),
        max_tokens=max_tokens, stop=Stop.END, version=0, score=score, correct=bool(score), status="correct", text=text,
    )  # fmt: skip


def rollouts(rows, hidden):
    return StepRollouts(
        rows=rows,
        verify=lambda name, some: [hidden(r) for r in some],
        call=lambda name, some: [hidden(r) for r in some],
    )


@pytest.mark.parametrize("kind", [kind for kind in names("monitor") if load("monitor", kind).row_fields is not None])
def test_a_rule_measures_the_fields_that_it_names_and_no_others(kind):
    """Of several processes the first one gets these fields of the others' rows."""
    rows = [row(score, [5, 6] * n, text="x") for n, score in ((9, 1.0), (2, 0.0), (4, 0.25), (6, 0.75), (3, None))]
    for graded in (True, False):
        some = [replace(each, components={"verifier": each.score}) if graded else each for each in rows]
        whole = load("monitor", kind)()
        part = copy.deepcopy(whole)
        less = [each.only(part.row_fields) for each in some]
        assert not any(each.text or any(each.logp_old) for each in less)
        assert part.measure(rollouts(less, float)) == whole.measure(rollouts(some, float))
        assert {**vars(part), "series": 0} == {**vars(whole), "series": 0}


def test_what_the_rules_measure():
    rows = [row(1.0, [5, 6] * 10), row(0.0, [7, 8, 9, 10]), row(None, [5] * 9)]
    rule = load("monitor", "repetition")(ngram=2)
    expected = (repeated([5, 6] * 10, 2) + 0 + repeated([5] * 9, 2)) / 3
    assert rule.measure(rollouts(rows, float)) == {"rollout/repetition": pytest.approx(expected)}
    rule = load("monitor", "length_reward")()
    assert rule.measure(rollouts(rows, float))["reward/length_correlation"] == pytest.approx(1.0), (
        "the unscored row is left out"
    )
    assert within_groups([[(1.0, 5.0)], [(0.0, 9.0)]]) == 0.0, "groups of one say nothing"
    by_length = [row(score, [5] * length) for score, length in ((1.0, 9), (0.0, 2), (0.25, 4), (0.75, 6))]
    values = rule.measure(rollouts(by_length, float))
    assert [values[f"reward/{name}_third"] for name in ("short", "middle", "long")] == [0.0, 0.25, 0.875]
    rule = load("monitor", "reward_hacking")(verifier="exact")
    measured = rule.measure(rollouts(rows, lambda r: 0.25 if r.score else None))
    assert measured == {"hidden/exact": 0.25, "hidden/exact_reward": 1.0}, "rows that both have scored"
    assert rule.measure(rollouts([rows[2]], float)) == {}
    rule = load("monitor", "reward_against_verifier")()
    paid = [
        replace(row(score, [5]), correct=correct)
        for score, correct in ((1.0, False), (0.95, False), (0.5, True), (0.0, False))
    ]
    shares = {"reward/paid_wrong_share": 0.5, "reward/of_correct": 0.5, "reward/of_incorrect": pytest.approx(1.95 / 3)}
    assert rule.measure(rollouts(paid, float)) == shares
    graded = [replace(each, components={"verifier": each.score}) for each in paid]
    assert rule.measure(rollouts(graded, float)) == {}, "the verifier's own grades are no other reward"
    drift = load("monitor", "length_drift")()
    for rows_of_step, own in ((graded, True), (paid, False)):
        assert drift.measure(rollouts(rows_of_step, float)) == {} and drift.own_grade == own
    many = [row(float(i % 2), [i + 3]) for i in range(1000)]
    asked = []
    load("monitor", "reward_hacking")(verifier="exact", rows=10).measure(
        rollouts(many, lambda r: asked.append(r) or 0.0)
    )
    assert len(asked) == 10


@given(st.lists(st.integers(0, 3), min_size=3, max_size=40), st.integers(1, 3))
def test_repetition_is_a_plain_loop(tokens, n):
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repeated(tokens, n) == pytest.approx(again / len(grams))


def bandit(power):
    """Softmax policies on R1 = [1, .6, 0]."""
    exp = np.exp(power * np.array([1, 0.6, 0]))
    return exp / exp.sum()


def test_goodhart_s_stopping_rule_on_a_known_bandit():
    """The true reward does not fall before the stop where the angle is right; a larger angle never stops later."""
    path, proxy, true = [bandit(b) for b in (0, 1, 2, 4, 6, 8, 16)], np.array([1, 0.6, 0]), np.array([0.5, 0.9, 0])
    centred, other = proxy - proxy.mean(), true - true.mean()
    theta = math.acos(centred @ other / np.linalg.norm(centred) / np.linalg.norm(other))
    assert math.degrees(theta) == pytest.approx(49.742728, abs=1e-6)
    stop = goodhart_file.stop_index(path, proxy, theta)
    assert stop == 2
    gains = [float(p @ true) for p in path]
    assert gains[: stop + 1] == sorted(gains[: stop + 1]) and max(gains) == gains[stop]
    assert goodhart_file.stop_index(path, proxy, math.radians(10)) is None
    stops = [goodhart_file.stop_index(path, proxy, math.radians(d)) for d in range(0, 91, 5)]
    indices = [len(path) if s is None else s for s in stops]
    assert indices == sorted(indices, reverse=True)
    assert goodhart_file.stop_index([path[0], path[0]], proxy, 0.1) == 0, "no movement is a stop"


def simulated(seed, drift, steps=120, rows=64):
    """Slopes and thresholds of a policy whose reward rises; with `drift` it is bought with length from step 60 on."""
    draw = np.random.default_rng(seed)
    rule = load("monitor", "goodhart")(verifier="exact", labels=400)
    out = []
    for step in range(steps):
        p = 0.3 + 0.5 * min(1, step / steps)
        extra = max(0, step - 60) * drift
        batch = []
        for i in range(rows):
            score = float(draw.random() < p)
            length = max(2, round(draw.normal(12 + 2 * score + extra, 2)))
            batch.append(row(score, list(draw.integers(3, 60, length)), group=i // 4, max_tokens=500))
        out.append(rule.measure(rollouts(batch, lambda r: r.score if draw.random() < 0.95 else 1 - r.score)))
    return rule, out


def test_goodhart_flags_a_reward_that_is_bought_with_something_else():
    rule, out = simulated(0, drift=0.5)
    assert 0 < rule.threshold < 0.7 and not rule.labelled
    verdicts = {i + 1: rule.judge(values) for i, values in enumerate(out) if values}
    assert any(verdicts.values()) and min(step for step, text in verdicts.items() if text) >= 60
    calm = [
        rule.judge(values)
        for seed in range(3)
        for rule, out in [simulated(seed, drift=0.0)]
        for values in out
        if values
    ]
    assert not any(calm)
