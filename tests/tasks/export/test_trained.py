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


def test_data_is_no_model_and_damage_is_named(home):
    made = exported.run()
    with pytest.raises(UserError, match="this is data and no model"):
        trained.find(made["data"].name)
    (made["short"].path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"mine/short.*config.json is damaged.*Run its recipe again"):
        trained.find("mine/short")
    assert homes.manifest(made["short"].path)["key"] == made["short"].key
