"""Which model a name means, and what is said where it means none."""

from __future__ import annotations

import exported
import homes
import pytest

from pipelines.base.errors import UserError
from tasks.export import trained
from tasks.store import index


def test_a_model_in_every_spelling(home):
    made = exported.run()
    short = made["short"]
    spellings = [
        exported.RUN,
        exported.RUN[:6],
        "mine",
        "mine/short",
        f"{exported.RUN[:8]}/short",
        short.name,
        str(short.path / "model"),
    ]
    models = [trained.find(name) for name in spellings]
    assert {model.folder for model in models} == {short.path / "model"}
    assert {model.run["run_id"] for model in models} == {exported.RUN}
    assert trained.find("mine/cold").artifact == made["cold"]
    assert models[0].recipe == "mine" and models[0].settings.path == str(short.path / "model")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine/shrt", "Did you mean 'short'"), ("mine/data", "no stage 'data' of this run made a model"), ("mime", "Did you mean 'mine'"),
        ("scoring", "made no model"),
    ],
)  # fmt: skip
def test_what_is_no_model(home, name, told):
    exported.run()
    index.start("ab" * 16, "scoring", "scoring", {})
    index.end("ab" * 16, "FINISHED", {"seconds": 1.0, "evaluation": {}, "differences": {}, "stages": {}}, {})
    with pytest.raises(UserError, match=told):
        trained.find(name)


def test_a_run_that_failed_is_not_taken_for_the_one_that_finished(home, caplog):
    """A failed run's last model may be of its first stage: whoever wants that one names the stage."""
    made = exported.run()
    stages = index.runs()[0]["summary"]["stages"]
    for run_id in ("a1" * 16, "b2" * 16):
        index.start(run_id, "mine", "mine", {})
        index.end(run_id, "FAILED", {"seconds": 1.0, "stages": {n: stages[n] for n in ("data", "cold")}}, {})
    assert trained.find("mine").artifact == made["short"]
    assert "3 runs are called mine: this is the newest that finished, e7e7e7e7" in caplog.text
    index.start("c3" * 16, "mine", "mine", {})
    index.end("c3" * 16, "FINISHED", index.runs()[-1]["summary"], {})
    assert trained.find("mine").run["run_id"] == "c3" * 16
    with pytest.raises(UserError, match=r"a1a1: this run has not finished \(FAILED\).*stage 'cold'.*: a1a1/cold\."):
        trained.find("a1a1")
    assert trained.find("a1a1/cold").artifact == made["cold"]


def test_a_name_of_failed_runs_alone_means_none_of_them(home):
    home.mkdir()
    for run_id, name in (("a1" * 16, "same"), ("a2" * 16, "same")):
        index.start(run_id, name, "e", {})
        index.end(run_id, "FAILED", {"seconds": 1.0, "stages": {}}, {})
    with pytest.raises(
        UserError, match=r"same: 2 runs have this name or beginning \(a2a2a2a2 FAILED, a1a1a1a1 FAILED\)"
    ):
        trained.find("same")


def test_data_is_no_model_and_damage_is_named(home):
    made = exported.run()
    with pytest.raises(UserError, match="this is data and no model"):
        trained.find(made["data"].name)
    (made["short"].path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"mine/short.*config.json is damaged.*Run its recipe again"):
        trained.find("mine/short")
    assert homes.manifest(made["short"].path)["key"] == made["short"].key
