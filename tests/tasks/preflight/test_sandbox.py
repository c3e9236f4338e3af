"""A recipe whose verifier runs programs needs a sandbox before it starts; others do not."""

from __future__ import annotations

import toys
import yaml

from pipelines.recipe.read import read_recipe
from pipelines.sandbox import isolation, pool
from tasks import keys
from tasks.preflight import sandbox as preflight


def recipe(tmp_path, verifier, **top):
    (tmp_path / "x.jsonl").write_text("{}\n")
    path = toys.recipe(tmp_path)
    body = yaml.safe_load(path.read_text())
    body["curate"]["sources"] = [{"kind": "file", "path": str(tmp_path / "x.jsonl"), "verifier": verifier}]
    path.write_text(yaml.safe_dump(body | top))
    return read_recipe(path)


def sandbox_problems(read, stage):
    return preflight.problems(read, [read.node(stage)])


def test_no_sandbox_is_a_problem_of_recipes_that_run_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "trouble", lambda level: "" if level == "limits_only" else "denied")
    problems = list(sandbox_problems(recipe(tmp_path, "python"), "curate"))
    assert [p.field for p in problems] == ["sandbox"]
    assert "namespaces: denied. landlock: denied" in str(problems[0]) and "limits_only" in str(problems[0])
    assert not list(sandbox_problems(recipe(tmp_path, "math"), "curate"))
    assert not list(sandbox_problems(recipe(tmp_path, "python"), "sft"))
    assert not list(sandbox_problems(recipe(tmp_path, "python", sandbox="limits_only"), "curate"))


def test_going_without_a_wall_is_in_the_key_and_the_sandbox_code_too(tmp_path):
    walled, bare = recipe(tmp_path, "python"), recipe(tmp_path, "python", sandbox="limits_only")
    parts = [keys.key_parts(r, "curate", {}) for r in (walled, bare)]
    assert parts[0]["settings"].get("sandbox") is None and parts[1]["settings"]["sandbox"] == "limits_only"
    inside = {f"pipelines.sandbox.inside.{name}" for name in ("zygote", "harness", "confine", "wire")}
    assert inside <= parts[0]["source"].keys()


def test_a_method_that_runs_programs_needs_one_as_a_verifier_does(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "trouble", lambda level: "" if level == "limits_only" else "denied")
    path = toys.recipe(tmp_path)
    plain, proposing = read_recipe(path), read_recipe(path, ["presets=[absolute_zero]"])
    assert not list(sandbox_problems(plain, "rlvr")) and not list(sandbox_problems(proposing, "sft"))
    (problem,) = sandbox_problems(proposing, "rlvr")
    assert problem.field == "sandbox"
    keyed = [keys.key_parts(each, "rlvr", {})["source"] for each in (plain, proposing)]
    assert ["pipelines.sandbox.inside.harness" in each for each in keyed] == [False, True]


def test_a_server_of_sandboxes_is_asked_whatever_a_stage_runs_and_is_in_no_key(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "trouble", lambda level: "denied")
    monkeypatch.delenv("WHETSTONE_SANDBOX_KEY", raising=False)
    local, lent = recipe(tmp_path, "python"), recipe(tmp_path, "python", sandbox={"url": "http://127.0.0.1:9"})
    assert [each.field for each in sandbox_problems(lent, "curate")] == ["sandbox.api_key_env"]
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", "k")
    assert [each.field for each in sandbox_problems(lent, "curate")] == ["sandbox.url"]
    assert keys.key_parts(local, "curate", {}) == keys.key_parts(lent, "curate", {})
    assert "pipelines.sandbox.remote" in keys.key_parts(lent, "curate", {})["source"]
    assert lent.sandbox.model_dump() == {
        "url": "http://127.0.0.1:9",
        "api_key_env": "WHETSTONE_SANDBOX_KEY",
        "timeout_s": 30.0,
    }


def test_this_process_asks_the_sandbox_of_the_recipe_at_hand(tmp_path):
    lent, local = recipe(tmp_path, "python", sandbox={"url": "http://127.0.0.1:9"}), recipe(tmp_path, "math")
    try:
        preflight.choose(lent)
        assert pool.elsewhere()
    finally:
        preflight.choose(local)
    assert not pool.elsewhere()
