"""What a pipeline run says of itself: parameters that somebody set, scores with intervals, where the code came from."""

from __future__ import annotations

import subprocess

import toys

from pipelines.recipe.read import read_recipe
from tasks.tracking import record

CELL = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 8}
SUMMARY = {
    "seconds": 7.5,
    "stages": {"sft": {"seconds": 2.0, "status": "ran", "run_id": "a" * 32, "key": "k"}},
    "evaluation": {
        "base": {"t": {"mean_length": CELL, "pass@1": CELL}},
        "rlvr": {"t": {"mean_length": CELL, "pass@1": {"value": 0.123456789, "low": 0.1, "high": 0.2, "n": 8}}},
    },
    "differences": {"t": {"base → rlvr": {"value": -0.126, "low": -0.2, "high": -0.01, "n": 8}}},
}


def test_the_headline_score_of_the_last_checkpoint_comes_first_and_intervals_follow():
    scores = record.scores(SUMMARY)
    assert list(scores)[:3] == ["rlvr/t/pass_at_1", "rlvr/t/pass_at_1_low", "rlvr/t/pass_at_1_high"]
    assert scores["rlvr/t/pass_at_1"] == 0.123457, "rounded: MLflow prints every digit"
    assert scores["gain/t/base_to_rlvr"] == -0.126 and scores["gain/t/base_to_rlvr_high"] == -0.01
    assert scores["seconds/sft"] == 2.0 and scores["seconds/total"] == 7.5
    assert not [name for name in scores if "@" in name]


def test_params_hold_what_somebody_set_and_what_runs_are_sorted_by(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path), ["rlvr.advantage=rloo"])
    params = record.params(recipe)
    assert params["rlvr.advantage.kind"] == "rloo" and params["seed"] == "0"
    assert params["rlvr.loss_aggregation.kind"] and params["rlvr.divergence.kind"], "not set, and still there"
    assert "rlvr.optimizer.betas" not in params and "sft.packing" not in params, "defaults that nobody set"
    assert not {name.partition(".")[0] for name in params} & {"threads", "tracking", "name"}
    plain = record.params(read_recipe(toys.recipe(tmp_path)))
    assert {k for k in params.keys() | plain.keys() if params.get(k) != plain.get(k)} == {"rlvr.advantage.kind"}
    assert set(record.params(recipe, ("sft",))) < set(params)


def test_a_dirty_checkout_says_so(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    assert record.git(tmp_path) == {}
    git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    record.git.cache_clear()
    tags = record.git(tmp_path)
    assert len(tags["mlflow.source.git.commit"]) == 40 and tags["mlflow.source.git.dirty"] == "false"
    (tmp_path / "a.py").write_text("2\n")
    record.git.cache_clear()
    assert record.git(tmp_path)["mlflow.source.git.dirty"] == "true"
