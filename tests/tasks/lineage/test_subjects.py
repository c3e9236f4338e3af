"""Names to checkpoints: ids, models, experiments, what is misspelt, ambiguous, damaged or without scores."""

from __future__ import annotations

import json
import sys

import homes
import pytest

from pipelines.base.errors import UserError
from tasks.lineage import subjects
from tasks.store import index
from tasks.store.known import NotFound

GOOD, BAD = [[1, 1], [1, 0], [0, 1]], [[0, 0], [1, 0], [0, 0]]
ONE, TWO = "a1" * 16, "b2" * 16


@pytest.fixture
def runs(home):
    """Two runs of an experiment that differ in the advantage."""
    first = homes.run(ONE, {"base": {"sums": BAD}, "rlvr": {"sums": GOOD}})
    second = homes.run(TWO, {"base": {"sums": BAD}, "rlvr": {"sums": BAD}}, advantage="rloo", name="other")
    return first, second


def test_a_name_in_every_spelling_is_the_same_checkpoint(runs):
    model = runs[0]["rlvr"]
    spellings = [
        ONE,
        ONE[:6],
        "drawn",
        f"rlvr-{model.key}",
        str(model.path),
        str(model.path / "model"),
        f"rlvr-{model.key[:9]}",
    ]
    assert [len(subjects.find([s])) for s in spellings] == [1] * len(spellings)
    assert {subjects.find([s])[0].artifact for s in spellings} == {f"rlvr-{model.key}"}
    assert len(subjects.find(spellings)) == 1, "each checkpoint once"
    assert subjects.find([f"{ONE}:base"])[0].checkpoint == "base"


def test_an_experiment_is_all_its_runs_oldest_first(runs):
    found = subjects.find(["experiment:drawn"])
    assert [s.run_id for s in found] == [ONE, TWO]
    assert [s.settings["rlvr.advantage"] for s in found] == ["grpo", "rloo"]


def test_what_a_subject_holds(runs):
    subject = subjects.find([ONE])[0]
    assert [s.scores for s in subject.samples["rlvr"]["sums"].values()] == GOOD and subject.first == "base"
    assert subject.curves["rlvr: reward/mean"] == [(1, 0.1), (2, 0.2)]
    assert subject.cost == {
        "seconds rlvr": 10, "seconds evaluate": 10, "seconds in all": 20, "tokens trained": 14, "tokens sampled": 40, "completions": 8
    }  # fmt: skip
    base = subjects.find([f"{ONE}:base"])[0]
    assert base.curves == {} and base.cost["completions"] == 0 and "rlvr.advantage" not in base.settings


def test_misspelt_names_get_the_nearest(runs):
    for name, hint in (("othr", "'other'"), (ONE[:7] + "x", ONE[:8]), ("experiment:drawm", "'drawn'")):
        with pytest.raises(UserError, match="Did you mean") as caught:
            subjects.find([name])
        assert hint in str(caught.value)


def test_ambiguous_names_list_the_runs(runs):
    homes.run("a1a1a1ff" * 4, {"rlvr": {"sums": GOOD}}, seed=9)
    with pytest.raises(NotFound, match="2 runs"):
        subjects.find(["a1a1a1"])
    with pytest.raises(NotFound, match="2 runs"):
        subjects.find(["drawn"])


def test_a_damaged_evaluation_is_named(runs):
    path = runs[0]["evaluate"].path / "samples/rlvr/sums.jsonl"
    path.write_text(path.read_text().replace("1.0", "0.0").replace("1,", "0,"))
    with pytest.raises(UserError, match=r"samples/rlvr/sums.jsonl is damaged.*--only evaluate"):
        subjects.find([ONE])


def test_a_run_without_scores_and_a_missing_model(runs):
    index.start("c3" * 16, "unscored", "drawn", {})
    with pytest.raises(UserError, match="has no evaluation"):
        subjects.find(["unscored"])
    import shutil

    shutil.rmtree(runs[0]["rlvr"].path)
    subject = subjects.find([ONE])[0]
    assert any("is not here" in note for note in subject.notes) and subject.curves == {}


def test_a_missing_evaluation_is_not_looked_for_where_it_cannot_be(runs):
    import shutil

    shutil.rmtree(runs[0]["evaluate"].path)
    with pytest.raises(UserError, match="never sent to MLflow"):
        subjects.find([ONE])
    with pytest.raises(UserError, match="no evaluation of this model"):
        subjects.find([f"rlvr-{runs[0]['rlvr'].key}"])


@pytest.mark.slow
def test_nothing_of_it_imports_mlflow():
    import subprocess

    script = "import sys, tasks.lineage.subjects, evaluation.comparison, evaluation.pages.comparison; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_problem_asked_twice_has_two_entries(runs, tmp_path):
    from evaluation import samples

    line = json.dumps({"doc_id": 0, "doc": {"question": "q"}, "acc": 1.0}) + "\n"
    (tmp_path / "x.jsonl").write_text(line * 2 + json.dumps({"doc_id": 2, "doc": {}, "ppl": 1}) + "\n")
    assert len(samples.read(tmp_path / "x.jsonl")) == 2
