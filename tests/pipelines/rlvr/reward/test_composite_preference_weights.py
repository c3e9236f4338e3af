"""Terms that each record weighs: by hand, the ends of the scale, what is refused, a run."""

from __future__ import annotations

import json

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.dataset import read_split
from pipelines.data.records import Problem
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.kind import KIND

UID = "a" * 32
TERMS = [
    {"kind": "verifier", "name": "correct", "weight": "preference"},
    {"kind": "verifier", "name": "short", "verifier": "regex", "answer": ".{0,6}", "weight": "preference"},
]


def scored(text, weights, terms=TERMS):
    problem = Problem(
        uid=UID, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="s", licence="l",
        info={} if weights is None else {"preferences": weights},
    )  # fmt: skip
    row = answer(UID, 0, text)
    bind("rlvr.reward", Rlvr(reward=terms).reward).fn.score([row], {UID: problem})
    return row


def test_the_record_s_weights_by_hand():
    weights = {"correct": 0.7, "short": 0.3}
    assert [scored(text, weights).score for text in ("4", "5", "the answer is 4", "long and wrong")] == [
        1.0,
        0.3,
        0.7,
        0.0,
    ]
    row = scored("the answer is 4", weights, [*TERMS, {"kind": "verifier", "name": "fixed", "weight": 2.0}])
    assert row.score == pytest.approx(0.7 + 2.0) and row.terms == pytest.approx([0.7, 0.0, 2.0]) and row.correct


@given(st.floats(0, 1), st.floats(-2, 2), st.floats(-2, 2))
def test_between_the_ends_it_is_a_mean_of_both(share, correct, short):
    reward, values = bind("rlvr.reward", Rlvr(reward=TERMS).reward).fn, {"correct": correct, "short": short}
    ends = [reward.total(values, {"correct": w, "short": 1 - w}) for w in (1.0, 0.0)]
    assert ends == [correct, short]
    assert reward.total(values, {"correct": share, "short": 1 - share}) == pytest.approx(
        share * correct + (1 - share) * short
    )


@pytest.mark.parametrize(
    "weights", [None, {"correct": 1.0}, {"correct": 1.0, "short": "0.5"}, {"correct": 1.0, "short": True}, [1, 0]]
)
def test_a_record_without_a_weight_is_named(weights):
    with pytest.raises(DataError, match=r"a{32} has no number in info\.preferences\.(short|correct)"):
        scored("4", weights)


def test_a_term_without_a_name_and_data_without_weights_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"terms\.0.*give it a name"):
        bind("rlvr.reward", Rlvr(reward=[{"kind": "verifier", "weight": "preference"}]).reward)
    recipe = read_recipe(toys.recipe(tmp_path, rlvr={"reward": TERMS}))
    assert KIND.info_fields(recipe.rlvr) == {
        "rlvr.reward.terms.0.weight": "preferences.correct", "rlvr.reward.terms.1.weight": "preferences.short",
    }  # fmt: skip


def test_a_run(tmp_path, start):
    """Each group is paid by the weights that its prompt says."""
    from pipelines.curate.run import run
    from pipelines.stage.report import Report

    (tmp_path / "sft").symlink_to(start / "sft")
    (tmp_path / "data").mkdir()
    path = toys.recipe(tmp_path)
    words = (
        "{kind: reasoning_gym, task: palindrome_generation, size: 100, seed: 3, config: {min_length: 3, max_length: 3}"
    )
    source = words + ", preferences: [a, b], prompt_template: '{metadata.letters}'}"
    recipe = read_recipe(path, [f"curate.sources=[{source}]"])
    model = recipe.model.model_copy(update={"path": str(start / "sft/out/model"), "fresh": None})
    run(recipe.curate, model, out=tmp_path / "data", report=Report(tmp_path / "w"), seed=0)
    problems = {problem.uid: problem for problem in read_split(tmp_path / "data", "train")}
    assert {tuple(problem.info["preferences"]) for problem in problems.values()} == {("a", "b")}
    kind = "{kind: verifier, verifier: regex, weight: preference"
    terms = f"[{kind}, name: a, answer: '.*'}}, {kind}, name: b, answer: 'x'}}]"
    made = toys.trainer(tmp_path, tmp_path, path, f"rlvr.reward={terms}", "rlvr.steps=1")
    made.run()
    rows = [json.loads(line) for line in next((tmp_path / "work").rglob("rollouts.jsonl")).read_text().splitlines()]
    for row in rows:
        asked, values = problems[row["uid"]].info["preferences"], row["components"]
        assert row["score"] == pytest.approx(asked["a"] * values["a"] + asked["b"] * values["b"])
        assert f"Preferences: a {asked['a']:g}, b {asked['b']:g}." in problems[row["uid"]].prompt[0]["content"]
    assert len({row["score"] for row in rows}) > 1
