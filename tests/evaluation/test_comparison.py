"""What a comparison says of arms: grouping by seed, shared problems, verdicts, curves, losses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evaluation import comparison
from evaluation.comparison import Subject
from evaluation.pages import comparison as pages
from evaluation.samples import Sample


def sample(problem: str, scores: list[float], prompt: str = "p") -> Sample:
    return Sample(problem, scores, f"question {problem}", "7", [f"says {v}" for v in scores], prompt)


def subject(rate: float, *, seed: int = 0, answers: int = 8, problems: range = range(60), **changes) -> Subject:
    draw = np.random.default_rng([seed, int(1000 * rate)])
    rows = {str(i): sample(str(i), [float(v) for v in draw.random(answers) < rate]) for i in problems}
    base = {str(i): sample(str(i), [1.0, *[0.0] * (answers - 1)]) for i in problems}
    whole = Subject(
        name=f"run{seed}", run_id=f"run{seed}", seed=seed, checkpoint="rlvr", artifact="rlvr-1",
        settings={"rlvr.advantage": f"a{rate}"}, samples={"base": {"sums": base}, "rlvr": {"sums": rows}},
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def test_seeds_of_a_recipe_are_an_arm_and_equal_seeds_are_not():
    arms = comparison.arms_of([subject(0.3), subject(0.6), subject(0.3, seed=1), subject(0.3)])
    assert [[s.seed for s in arm.subjects] for arm in arms] == [[0, 1], [0], [0]]
    assert [arm.name for arm in arms] == [
        "rlvr.advantage a0.3 · (1)",
        "rlvr.advantage a0.6",
        "rlvr.advantage a0.3 · (3)",
    ]
    alone = comparison.arms_of([subject(0.3), subject(0.3, seed=1)], separate=True)
    assert len(alone) == 2
    assert len(comparison.arms_of([subject(0.3), subject(0.3, seed=1)])) == 1


def names(*changes: dict, **common) -> list[str]:
    return [arm.name for arm in comparison.arms_of([subject(0.3, **{**common, **c}) for c in changes], separate=True)]


def test_arms_are_called_by_preset_and_by_what_was_set_differently():
    gspo = {
        "presets": ("gspo",),
        "overrides": ("rlvr.optimizer.learning_rate=3e-4", "sft.steps=3", "seed=1"),
        "settings": {"a": "1"},
    }
    dapo = {"overrides": ("presets=[dapo]", "sft.steps=3", "tracking.experiment=x"), "settings": {"a": "2"}}
    assert names(gspo, dapo, {"overrides": ("sft.steps=3",)}, recipe="toy") == ["gspo · rlvr.lr 3e-4", "dapo", "toy"]
    assert names(gspo, {**gspo, "recipe": "other"}, recipe="toy") == ["toy · gspo", "other · gspo"]


def test_arms_that_differ_in_nothing_are_called_by_checkpoint_seed_or_run():
    assert names({"checkpoint": "sft"}, {}, presets=("gspo",), settings={}) == ["gspo · sft", "gspo · rlvr"]
    assert names({"seed": 1}, {"seed": 2}, presets=("gspo",)) == ["gspo · seed 1", "gspo · seed 2"]
    assert names({"name": "9c827170"}, {"name": "1b2"}, recipe="toy") == ["toy · 9c827170", "toy · 1b2"]


def test_what_an_arm_lacks_is_no_difference():
    """A stage or a method that only one side has would hide, with all its fields, what differs."""
    one = {"rlvr.advantage": "grpo", "sft.lora": "None", "sft.steps": "1", "rlvr.steps": "4"}
    two = {
        "rlvr.advantage": "gae",
        "rlvr.advantage.lam": "0.9",
        "sft.lora.rank": "4",
        "sft.steps": "1",
        "evaluate.k": "2",
    }
    arms = comparison.arms_of([subject(0.3, settings=one), subject(0.3, settings=two)])
    assert {row["field"]: row["values"] for row in comparison.settings_table(arms)} == {
        "rlvr.advantage": ["grpo", "gae"],
        "sft.lora.rank": ["None", "4"],
    }
    assert comparison.missing_stages(arms) == {"evaluate": [arms[0].name]}


def test_a_plain_gain_is_better_and_noise_is_not():
    body = comparison.compare(comparison.arms_of([subject(0.3), subject(0.7), subject(0.302)]))
    tests = {t["new"]: t for t in body["benchmarks"]["sums"]["tests"] if t["k"] == 1}
    assert tests[1]["verdict"] == "better" and tests[1]["p_holm"] >= tests[1]["p"] and tests[1]["family"] == 2
    assert tests[2]["verdict"] == "no difference shown"
    worse = comparison.compare(comparison.arms_of([subject(0.7), subject(0.3)]))
    assert worse["benchmarks"]["sums"]["tests"][0]["verdict"] == "worse"
    assert body["settings"] == [{"field": "rlvr.advantage", "values": ["a0.3", "a0.7", "a0.302"]}]


def test_only_shared_problems_are_compared_and_it_says_so():
    arms = comparison.arms_of([subject(0.3), subject(0.7, problems=range(40, 100))])
    body = comparison.compare(arms)["benchmarks"]["sums"]
    assert body["problems"] == 20 and all(t["n"] == 20 for t in body["tests"])
    assert (
        "compared on the 20 problems that all were asked (rlvr.advantage a0.3: 60, rlvr.advantage a0.7: 60)"
        in body["notes"]
    )


def test_no_problem_in_common_is_said_not_raised():
    arms = comparison.arms_of([subject(0.3), subject(0.7, problems=range(60, 100))])
    body = comparison.compare(arms)["benchmarks"]["sums"]
    assert body["tests"] == [] and "they were asked no problem in common" in body["notes"]
    other = subject(0.7)
    other.samples["rlvr"] = {"products": other.samples["rlvr"]["sums"]}
    apart = comparison.compare(comparison.arms_of([subject(0.3), other]))
    assert apart["benchmarks"] == {} and any("asked of" in note for note in apart["notes"])


def test_other_settings_and_prompts_are_said():
    one, two = subject(0.3, tasks={"sums": {"samples": 8}}), subject(0.7, tasks={"sums": {"samples": 4}})
    two.samples["rlvr"]["sums"]["3"] = dataclasses.replace(two.samples["rlvr"]["sums"]["3"], prompt="other")
    notes = comparison.compare(comparison.arms_of([one, two]))["benchmarks"]["sums"]["notes"]
    assert "asked with other settings: samples is 8 in rlvr.advantage a0.3, 4 in rlvr.advantage a0.7" in notes
    assert "1 of the shared problems were asked with another prompt in rlvr.advantage a0.7" in notes


def test_pass_at_k_goes_as_far_as_all_have_answers():
    body = comparison.compare(comparison.arms_of([subject(0.3, answers=8), subject(0.7, answers=20)]))
    curve = body["benchmarks"]["sums"]["pass_at_k"]
    assert curve["k"] == [1, 2, 4, 8]
    for arm in curve["arms"]:
        assert arm["mean"] == sorted(arm["mean"])
        assert all(low <= mean <= high for low, mean, high in zip(arm["low"], arm["mean"], arm["high"], strict=True))


def test_one_test_for_one_answer_and_for_several_seeds():
    one = comparison.compare(comparison.arms_of([subject(0.3, answers=1), subject(0.7, answers=1)]))
    assert [t["test"] for t in one["benchmarks"]["sums"]["tests"]] == ["paired score test"]
    seeds = [subject(r, answers=1, seed=s) for r in (0.3, 0.7) for s in (0, 1)]
    several = comparison.compare(comparison.arms_of(seeds))["benchmarks"]["sums"]["tests"][0]
    assert several["test"] == "paired score test" and several["over_seeds"]["value"] > 0


def test_one_answer_against_several_is_no_pair_of_verdicts():
    """A share of several answers is seldom 0 where one answer often is: signs would find one model worse than itself."""
    body = comparison.compare(comparison.arms_of([subject(0.3, answers=1), subject(0.302, answers=8)]))
    (test,) = body["benchmarks"]["sums"]["tests"]
    assert test["verdict"] == "no difference shown"


def test_lost_problems_come_with_their_texts():
    after = subject(0.7)
    after.samples["rlvr"]["sums"]["5"] = sample("5", [0.0] * 8)
    lost = comparison.compare(comparison.arms_of([subject(1.0), after]))["benchmarks"]["sums"]["lost"]
    against = {e["reference"]: e for e in lost if e["arm"] == 1}
    assert set(against) == {"its base", "rlvr.advantage a1.0"} and against["its base"]["solved"] == 60
    problem = against["rlvr.advantage a1.0"]["problems"][0]
    assert problem["question"] == "question 5" and problem["before"] == "says 1.0" and problem["share_before"] == 1


def test_bands_span_the_seeds():
    curves = [[(i, float(i + s)) for i in range(10)] for s in (0, 2)]
    seeds = [subject(0.3, seed=s, curves={"rlvr: reward/mean": c}) for s, c in enumerate(curves)]
    band = comparison.compare(comparison.arms_of(seeds))["curves"]["rlvr: reward/mean"][0]
    assert band["seeds"] == 2 and band["low"][3] == 3 and band["high"][3] == 5 and band["mean"][3] == 4
    long = [subject(0.3, curves={"c": [(i, 1.0) for i in range(5000)]})]
    assert len(comparison.compare(comparison.arms_of(long))["curves"]["c"][0]["steps"]) == 200


def test_changed_code_is_said():
    code = [{"rlvr loop.py": "x", "rlvr grpo.py": "g"}, {"rlvr loop.py": "y", "rlvr rloo.py": "r"}]
    arms = comparison.arms_of([subject(0.3, code=code[0]), subject(0.7, code=code[1])])
    assert comparison.compare(arms)["notes"] == ["rlvr: the runs were made with different code or libraries: loop.py"]


@pytest.mark.parametrize("count", [2, 30])
def test_many_arms_have_names_of_their_own(count):
    arms = comparison.arms_of([subject(0.3 + i / 100) for i in range(count)])
    assert len({arm.name for arm in arms}) == count


def test_cheap_scores_pick_checkpoints_and_the_picking_is_judged():
    """A reward that ranks as the benchmark does picks the best first; one that ranks the other way round picks the worst."""
    rates = {0: 0.2, 1: 0.5, 2: 0.7, 3: 0.9}
    subjects = [
        subject(rate, seed=seed, problems=range(300), curves={
            "rlvr: reward/mean": [(1, 0.0), (2, rate)], "rlvr: policy/entropy": [(1, 1.0)], "sft: loss/heldout": [(1, rate)],
        })
        for seed, rate in rates.items()
    ]  # fmt: skip
    body = comparison.compare(comparison.arms_of(subjects))["picking"]["sums"]
    assert body["checkpoints"] == 4 and body["start"] == pytest.approx(1 / 8)
    by = {each["by"]: each["top"] for each in body["picked"]}
    assert list(by) == ["rlvr: reward/mean", "sft: loss/heldout"], "an entropy ranks nothing"
    right, wrong = by["rlvr: reward/mean"], by["sft: loss/heldout"]
    assert [row["k"] for row in right] == [2, 3, 4] and right[-1] == wrong[-1]
    assert right[0]["best"] == pytest.approx(0.9, abs=0.03) and wrong[0]["best"] == pytest.approx(0.5, abs=0.03)
    two = right[0]
    assert two["std"] == pytest.approx((two["best"] - two["worst"]) / 2**0.5)
    assert two["sharpe"] == pytest.approx((two["best"] - 1 / 8) / two["std"]) and two["sharpe"] > wrong[0]["sharpe"]


def test_runs_of_a_sweep_are_picked_over_the_run_that_they_start_from():
    """Each was evaluated alone; the start is known by its artifact, or is the base."""

    def alone(rate, seed, **changes):
        one = subject(rate, seed=seed)
        return dataclasses.replace(
            one, samples={"rlvr": one.samples["rlvr"]}, curves={"rlvr: reward/mean": [(1, rate)]}, **changes
        )

    runs = [alone(rate, seed, made_from=("curate-1", "sft-1")) for seed, rate in enumerate((0.3, 0.5, 0.7))]
    begun = alone(0.25, 9, artifact="sft-1")
    body = comparison.compare(comparison.arms_of([begun, *runs]))
    told = body["picking"]["sums"]
    assert told["checkpoints"] == 3 and told["start"] == pytest.approx(
        body["benchmarks"]["sums"]["scores"][0]["pass@1"]
    )
    assert comparison.compare(comparison.arms_of(runs))["picking"] == {}, "no start was evaluated"
    assert comparison.compare(comparison.arms_of([begun, *runs[:2]]))["picking"] == {}, "two are too few"


def longer(rate: float, per_character: float, **changes) -> Subject:
    """A subject whose answers are correct the more often the longer they are."""
    draw = np.random.default_rng(int(1000 * rate))
    rows = {}
    for i in range(80):
        lengths = draw.integers(10, 60, 8) + int(100 * rate)
        scores = [float(v) for v in draw.random(8) < np.minimum(1, per_character * lengths)]
        rows[str(i)] = Sample(str(i), scores, f"question {i}", "7", ["x" * n for n in lengths], "p")
    return subject(rate, samples={"base": {"sums": rows}, "rlvr": {"sums": rows}}, **changes)


def test_a_gain_by_length_alone_is_said():
    """Both are correct by their length; the second's answers are longer."""
    body = comparison.compare(comparison.arms_of([longer(0.1, 0.01), longer(0.3, 0.01)]))
    [entry] = body["benchmarks"]["sums"]["length"]
    assert entry["gain"] > 0.12 and entry["within"] < 0.5 * entry["gain"] and entry["low"] < 0 < entry["high"]
    assert entry["new_length"] > 1.1 * entry["old_length"] and 0.5 < entry["covered"] <= 1
    [line] = [line for line in pages.lines(body) if "equal length" in line]
    assert f"of {100 * entry['gain']:+.1f} points" in line and line.strip() in pages.html(body)


def test_of_answers_of_one_length_nothing_is_said():
    body = comparison.compare(comparison.arms_of([subject(0.3), subject(0.6)]))
    assert body["benchmarks"]["sums"]["length"] == []
    unread = longer(0.3, 0.01)
    rows = {p: dataclasses.replace(s, answers=s.answers[:1]) for p, s in unread.samples["rlvr"]["sums"].items()}
    other = dataclasses.replace(unread, settings={"a": "b"}, samples={"base": {"sums": rows}, "rlvr": {"sums": rows}})
    body = comparison.compare(comparison.arms_of([unread, other]))
    assert body["benchmarks"]["sums"]["length"] == [], "not all of its answers are stored"
