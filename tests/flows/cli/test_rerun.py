"""A run of MLflow's repeated where nothing of it lies: its recipe and its earlier stages come from the store."""

from __future__ import annotations

import json

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.base.files import read_json


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run whose project folder is gone but for the store: (folder, store, summary)."""
    folder = tmp_path_factory.mktemp("rerun")
    recipe = toys.recipe(folder, rlvr={"steps": 2, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 8}})
    toys.whetstone(
        "run", str(recipe), "--until", "rlvr", "--summary", str(folder / "s.json"), home=folder / "home", timeout=900
    )
    (folder / "home" / "runs").rename(folder / "elsewhere")
    recipe.unlink()
    return folder, f"sqlite:///{folder / 'home' / 'mlflow.db'}", json.loads((folder / "s.json").read_text())


def rerun(ran, home, *more, check=True):
    folder, store, summary = ran
    arguments = ["rerun", summary["parent_run_id"][:10], *more, "--summary", str(folder / "again.json")]
    done = toys.whetstone(*arguments, home=folder / home, check=check, timeout=900, MLFLOW_TRACKING_URI=store)
    return done, json.loads((folder / "again.json").read_text()) if done.returncode == 0 else None


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_one_stage_with_a_change(ran):
    folder, _, before = ran
    _, summary = rerun(ran, "other", "--only", "rlvr", "--set", "rlvr.advantage=rloo")
    assert {n: s["status"] for n, s in summary["stages"].items()} == {"rlvr": "ran"}
    for stage in ("curate", "sft"):
        (fetched,) = (folder / "other" / "runs").glob(f"{stage}-*")
        key = before["stages"][stage]["key"]
        assert fetched.name == f"{stage}-{key}"
        original = folder / "elsewhere" / fetched.name
        assert read_json(fetched / "manifest.json")["digest"] == read_json(original / "manifest.json")["digest"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_what_is_other_than_in_the_run_is_named(ran):
    done, _ = rerun(ran, "changed", "--only", "rlvr", "--set", "sft.max_length=48", check=False)
    run = ran[2]["parent_run_id"][:8]
    assert done.returncode == 2
    assert (
        f"needs sft, which has not been made for this recipe (since run {run} sft.max_length changed 64 → 48)"
        in done.stderr
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_without_a_change_every_stage_comes_from_the_store(ran):
    _, summary = rerun(ran, "third", "--until", "rlvr")
    assert {s["status"] for s in summary["stages"].values()} == {"reused"}
    assert {n: s["key"] for n, s in summary["stages"].items()} == {n: s["key"] for n, s in ran[2]["stages"].items()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.long
def test_stages_that_were_reused_from_another_experiment_come_too(ran):
    """On an empty project folder: curate and sft were made by the first experiment, the run is of the second."""
    folder, store, _ = ran
    changed = ("--set", "tracking.experiment=another", "--set", "name=another", "--set", "rlvr.steps=1")
    _, other = rerun(ran, "second", "--until", "rlvr", *changed)
    assert {n: s["status"] for n, s in other["stages"].items()} == {"curate": "reused", "sft": "reused", "rlvr": "ran"}
    again = folder / "reused.json"
    arguments = [
        "rerun",
        other["parent_run_id"],
        "--from",
        "rlvr",
        "--until",
        "rlvr",
        "--set",
        "rlvr.steps=3",
        "--summary",
        str(again),
    ]
    toys.whetstone(*arguments, home=folder / "fourth", timeout=900, MLFLOW_TRACKING_URI=store)
    assert {n: s["status"] for n, s in json.loads(again.read_text())["stages"].items()} == {"rlvr": "ran"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_report_and_lineage_work_in_a_folder_that_has_nothing(ran):
    folder, store, summary = ran
    run, model = summary["parent_run_id"], f"rlvr-{summary['stages']['rlvr']['key']}"
    page = folder / "page.html"
    toys.whetstone("report", run[:8], "--out", str(page), home=folder / "fifth", MLFLOW_TRACKING_URI=store)
    assert "step 2" in page.read_text() and not list((folder / "fifth/runs").glob("sft-*")), "only what it shows"
    for home, name in (("fifth", run[:8]), ("sixth", model)):
        done = toys.whetstone("lineage", name, home=folder / home, MLFLOW_TRACKING_URI=store)
        assert "every file is what its manifest says" in done.stdout
        assert all(f"{stage}-{summary['stages'][stage]['key']}" in done.stdout for stage in ("curate", "sft", "rlvr"))
    for command in (["report", "0" * 32], ["lineage", "0" * 32]):
        done = toys.whetstone(*command, home=folder / "seventh", check=False, MLFLOW_TRACKING_URI=store)
        assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_row_tells_its_story_in_a_folder_that_has_nothing(ran):
    """Where its data lie, its SFT split and its rewards come from MLflow; a second question needs MLflow no more."""
    folder, store, summary = ran
    drawn = folder / "elsewhere" / f"rlvr-{summary['stages']['rlvr']['key']}" / "report" / "draws.jsonl"
    uid = next(iter(json.loads(drawn.read_text().splitlines()[0])["rewards"]))
    body = json.loads(
        toys.whetstone("rows", uid[:12], "--json", home=folder / "eighth", MLFLOW_TRACKING_URI=store).stdout
    )
    keys = {stage: f"{stage}-{summary['stages'][stage]['key']}" for stage in ("curate", "sft", "rlvr")}
    assert body["uid"] == uid and keys["curate"] in [place["artifact"] for place in body["data"]]
    assert keys["sft"] in body["trained"]
    (draw,) = body["draws"]  # of the newest run that has the row: other tests may have made one
    made = next(path for path in folder.rglob(draw["model"]) if not path.is_relative_to(folder / "eighth"))
    rewards = json.loads((made / "report" / "draws.jsonl").read_text().splitlines()[0])["rewards"][uid]
    assert draw["steps"][0] == {"step": 1, "rewards": rewards}
    gone = f"sqlite:///{folder / 'gone' / 'mlflow.db'}"
    again = toys.whetstone("rows", uid[:12], "--taint", home=folder / "eighth", MLFLOW_TRACKING_URI=gone)
    assert draw["model"] in again.stdout and "drew it in" in again.stdout
    lost = toys.whetstone("rows", "zz", home=folder / "ninth", check=False, MLFLOW_TRACKING_URI=store)
    assert lost.returncode == 2 and "Traceback" not in lost.stderr
    assert "none of the 0 curated data sets here" in lost.stderr and "neither has one of the 1 newest" in lost.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_that_is_not_there(ran):
    folder, store, _ = ran
    done = toys.whetstone("rerun", "zzzz", home=folder / "other", check=False, MLFLOW_TRACKING_URI=store)
    assert done.returncode == 2 and "no pipeline run" in done.stderr


def test_a_preset_would_change_nothing(home):
    from flows.cli import rerun as command

    with pytest.raises(RecipeError, match=r"rlvr\.advantage"):
        command.recipe_of("0" * 32, ["presets=[dapo]"])
