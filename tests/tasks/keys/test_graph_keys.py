"""Keys of named stages: a name is no part of them, and a leaf that changes is all that runs."""

from __future__ import annotations

import time

import pytest
import toys
import yaml

from flows.cli import drawing
from pipelines.recipe.read import Recipe, read_recipe
from tasks import environment, keys, planning
from tasks.pipeline import Selection
from tasks.stages import inputs_of, plan
from tasks.store import artifacts


def keys_of(recipe: Recipe) -> dict[str, str]:
    """As if every input had the key of its stage as its digest."""
    found: dict[str, str] = {}
    for stage in recipe.stage_names():
        inputs = {label: found[source] for label, source in inputs_of(recipe, stage).items()}
        found[stage] = keys.stage_key(keys.key_parts(recipe, stage, inputs))
    return found


def as_stages(path, names):
    """The recipe of plain sections at `path` with named stages; `names` says what each is called."""
    body = yaml.safe_load(path.read_text())
    wired = {"sft": {"data": names["curate"]}, "rlvr": {"data": names["curate"], "model": names["sft"]},
             "evaluate": {"models": ["base", names["sft"], names["rlvr"]]}}  # fmt: skip
    body["stages"] = {
        name: {"kind": kind, **wired.get(kind, {}), **body.pop(kind)} for kind, name in names.items() if kind in body
    }
    out = path.with_name("-".join(names.values()) + ".yaml")
    out.write_text(yaml.safe_dump(body, sort_keys=False))
    return out


def test_a_name_is_no_part_of_a_key(tmp_path):
    plain = toys.recipe(tmp_path)
    sections = keys_of(read_recipe(plain))
    for names in ("data cold short scores", "rlvr evaluate curate sft"):
        named = dict(zip(sections, names.split(), strict=True))
        assert keys_of(read_recipe(as_stages(plain, named))) == {named[k]: v for k, v in sections.items()}


def twelve(tmp_path):
    """Data, a cold start, eight RL stages in two branches and two evaluations."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rl, sft, data, scores = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {"data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft}}
    for branch in ("a", "b"):
        for number in range(4):
            model = f"{branch}{number - 1}" if number else "cold"
            stages[f"{branch}{number}"] = {"kind": "rlvr", "data": "data", "model": model, **rl, "seed": ord(branch)}
    stages["mid"] = {"kind": "evaluate", **scores, "models": ["cold", "a1", "b1"]}
    stages["end"] = {
        "kind": "evaluate",
        **scores,
        "models": ["a1", "a3", "b3"],
        "guidance": {"base": "a1", "weight": 2},
        "search": {"kind": "best_of_n", "n": 4, "score": "likelihood"},
    }
    path = tmp_path / "twelve.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return path


def publish(recipe: Recipe) -> None:
    """An artifact for every stage, made of nothing but its key, as the last run of the recipe has made them."""
    done = {}
    for stage in recipe.stage_names():
        kind = recipe.graph[stage].kind
        parts = keys.key_parts(recipe, stage, {la: done[s].digest for la, s in inputs_of(recipe, stage).items()})
        key = keys.stage_key(parts)
        out = environment.runs_folder() / ".work" / f"{kind}-{key}" / "out"
        out.mkdir(parents=True)
        (out / "what").write_text(key)
        done[stage] = artifacts.put(out, environment.runs_folder(), kind, key, {"parts": parts, "numbers": {}})
        planning.remember(recipe, stage, parts)


@pytest.mark.slow
def test_of_twelve_stages_with_one_leaf_changed_one_runs_and_the_plan_is_quick(tmp_path, home):
    path = twelve(tmp_path)
    recipe = read_recipe(path)
    assert len(recipe.graph) == 12
    publish(recipe)
    began = time.process_time()
    planned = plan(read_recipe(path, ["end.confidence=0.9"]))
    assert time.process_time() - began < 2
    assert {p.stage for p in planned if p.action == "run"} == {"end"}
    planned = plan(read_recipe(path, ["end.guidance.weight=[2, 3]"]))
    assert {p.stage for p in planned if p.action == "run"} == {"end"}
    planned = plan(read_recipe(path, ["end.search.n=8"]))
    assert {p.stage for p in planned if p.action == "run"} == {"end"}
    planned = plan(read_recipe(path, ["b1.sampling.temperature=0.5"]))
    assert [p.stage for p in planned if p.action == "run"] == ["b1", "b2", "b3", "mid", "end"]


MORE = "evaluate.tasks=[palindromes, sums]"


def test_a_benchmark_more_reruns_curate_and_says_that_the_rest_hangs_on_its_rows(tmp_path, home):
    recipe = read_recipe(toys.recipe(tmp_path))
    publish(recipe)
    more = read_recipe(tmp_path / "toy.yaml", [MORE])
    planned = plan(more)
    assert [(p.stage, p.action, p.if_same) for p in planned] == [
        ("curate", "run", ()),
        ("sft", "run", ("curate",)),
        ("rlvr", "run", ("curate",)),
        ("evaluate", "run", ()),
    ]
    assert planned[1].why == planned[2].why == "reused if the rows of curate stay the same"
    said = drawing.plan(more, planned).splitlines()[-1]
    assert said == "curate runs; if its rows stay the same, the rest is reused: sft and rlvr"
    changed = plan(read_recipe(tmp_path / "toy.yaml", [MORE, "sft.steps=3"]))
    assert [p.if_same for p in changed] == [()] * 4 and changed[1].why == "curate will run", "sft has changed itself"
    assert "if its rows" not in drawing.plan(more, changed)
    assert [p.if_same for p in plan(more, fresh=True)] == [()] * 4


@pytest.mark.slow
def test_what_two_curations_feed_hangs_on_the_rows_of_both(tmp_path, home):
    path = twelve(tmp_path)
    body = yaml.safe_load(path.read_text())
    stages = body["stages"]
    stages = {"data": stages["data"], "data2": {**stages["data"], "self_check": False}, **stages}
    stages["b0"] = {**stages["b0"], "data": "data2"}
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    publish(read_recipe(path))
    planned = {p.stage: p for p in plan(read_recipe(path, ["mid.tasks=[palindromes, sums]"]))}
    assert planned["cold"].if_same == ("data",) and set(planned["b3"].if_same) == {"data", "data2"}
    assert planned["end"].why.endswith("stay the same") and planned["mid"].if_same == ()


@pytest.mark.slow
def test_renaming_a_stage_reruns_nothing(tmp_path, home):
    path = twelve(tmp_path)
    publish(read_recipe(path))
    text = path.read_text().replace("a1", "middle").replace("mid:", "halfway:").replace("cold", "warm")
    path.write_text(text)
    recipe = read_recipe(path)
    assert {"middle", "halfway", "warm"} <= set(recipe.graph)
    assert {p.action for p in plan(recipe)} == {"reuse"}


def test_from_and_until_follow_the_edges(tmp_path):
    recipe = read_recipe(twelve(tmp_path))
    assert Selection(start="b2").of(recipe) == ["b2", "b3", "end"]
    assert Selection(until="a1").of(recipe) == ["data", "cold", "a0", "a1"]
    assert Selection(start="a0", until="mid").of(recipe) == ["a0", "a1", "mid"]
    assert Selection(only=("end", "b3")).of(recipe) == ["b3", "end"]


def test_a_stage_that_is_read_in_several_places_is_waited_for_once(home):
    assert plan(read_recipe(toys.ROOT / "recipes/search.yaml"))[-1].why == "cold and scorer will run"
