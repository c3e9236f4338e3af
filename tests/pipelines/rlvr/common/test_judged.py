"""Settings that every reward with a judge shares."""

from __future__ import annotations

import pytest

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind, load, names, settings_model
from pipelines.judges.asker import JudgeSettings
from pipelines.rlvr.common.judged import Judged

REWARDS = [name for name in names("rlvr.reward") if issubclass(load("rlvr.reward", name), Judged)]  # type: ignore[arg-type]
DEFAULTS = {"exprl": {"max_tokens": 2048}, "gen_prm": {"max_tokens": 4096, "timeout_s": 300.0}}
EXTRA = {
    "url": "http://localhost:1/v1", "api_key_env": "KEY", "temperature": 0.5, "max_tokens": 7, "concurrency": 3, "timeout_s": 9.0,
    "cache": False,
}  # fmt: skip


def test_all_of_them():
    assert set(REWARDS) == {"judge", "calm", "drlc", "exprl", "gen_prm", "ppr", "safesearch", "steptool"}


@pytest.mark.parametrize("name", REWARDS)
def test_every_shared_setting_reaches_the_judge(name):
    asked = bind("rlvr.reward", {"kind": name, "model": "grader", **EXTRA}).fn.asker
    assert asked.settings.model_dump() == {"model": "grader", "path": None, **EXTRA}
    assert asked.field == "rlvr.reward" and asked.named


@pytest.mark.parametrize("name", REWARDS)
def test_defaults(name):
    defaults = {key: field.default for key, field in JudgeSettings.model_fields.items()} | DEFAULTS.get(name, {})
    fields = settings_model(load("rlvr.reward", name)).model_fields
    assert {key: fields[key].default for key in defaults} == defaults
    asked = bind("rlvr.reward", {"kind": name, "model": "grader"}).fn.asker
    assert asked.settings.model_dump() == defaults | {"model": "grader"}


@pytest.mark.parametrize("name", REWARDS)
def test_bounds_and_unknown_settings_name_the_field(name):
    for key, value in {
        "max_tokens": 0,
        "timeout_s": 0,
        "concurrency": 2000,
        "temperature": -1,
        "url": "nowhere",
        "model": "",
    }.items():
        with pytest.raises(RecipeError, match=rf"rlvr\.reward\.{key}: "):
            bind("rlvr.reward", {"kind": name, "model": "grader", key: value})
    with pytest.raises(RecipeError, match=r"rlvr\.reward\.max_token: no such setting\. Did you mean .?max_tokens"):
        bind("rlvr.reward", {"kind": name, "model": "grader", "max_token": 5})


@pytest.mark.parametrize("name", REWARDS)
def test_one_judge(name):
    with pytest.raises(RecipeError, match="give one of them"):
        bind("rlvr.reward", {"kind": name, "model": "grader", "path": "./folder"})
    with pytest.raises(RecipeError, match="those of an endpoint"):
        bind("rlvr.reward", {"kind": name, "path": "./folder", "url": EXTRA["url"]})
    if name in ("safesearch", "steptool"):
        assert not bind("rlvr.reward", {"kind": name}).fn.asker.named
        with pytest.raises(RecipeError, match="those of a judge"):
            bind("rlvr.reward", {"kind": name, "url": EXTRA["url"]})
    else:
        with pytest.raises(RecipeError, match="give one of them"):
            bind("rlvr.reward", {"kind": name})
