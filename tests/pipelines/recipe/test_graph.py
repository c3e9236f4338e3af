"""Named stages: which order they get, what they read, and what is refused with the field's name."""

from __future__ import annotations

import pytest
import toys
import yaml

from evaluation.kind import guided
from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import SECTIONS, read_recipe
from pipelines.recipe.stage_kind import stage_kinds

SETTINGS = {
    "curate": {"sources": [{"kind": "reasoning_gym", "task": "palindrome_generation", "size": 20}]},
    "sft": {"steps": 2},
    "rlvr": {"steps": 2, "sampling": {"max_tokens": 8}},
    "evaluate": {"tasks": ["palindromes"]},
}


def stage(kind, **fields):
    return {"kind": kind, **SETTINGS[kind], **fields}


BRANCHES = {
    "scores": stage("evaluate"),
    "long": stage("rlvr", data="data", model="short"),
    "data": stage("curate"),
    "cold": stage("sft", data="data"),
    "short": stage("rlvr", data="data", model="cold"),
    "other": stage("rlvr", data="data", model="cold", advantage="rloo"),
}


def write(folder, stages=None, **fields):
    path = folder / "graph.yaml"
    body = {"name": "graph", "model": {"fresh": {"architecture": "llama"}}, "stages": stages or BRANCHES, **fields}
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return path


def test_stages_come_after_what_they_read_and_else_as_they_are_written(tmp_path):
    recipe = read_recipe(write(tmp_path))
    assert recipe.stage_names() == ["data", "cold", "short", "long", "other", "scores"]
    check(recipe)


def test_an_evaluation_without_a_list_has_every_model_and_compares_along_the_edges(tmp_path):
    node = read_recipe(write(tmp_path)).node("scores")
    assert node.labels == {"base": "base", "sft": "cold", "rlvr": "short", "rlvr-2": "long", "rlvr-3": "other"}
    job = node.kind.job(node)
    assert job["differences"] == [["base", "sft"], ["sft", "rlvr"], ["rlvr", "rlvr-2"], ["sft", "rlvr-3"]]
    assert job["base_in"] == "sft"


def test_a_model_that_is_not_evaluated_is_passed_over_to_the_one_before_it(tmp_path):
    node = read_recipe(write(tmp_path), ["scores.models=[base, long]"]).node("scores")
    assert node.kind.job(node)["differences"] == [["base", "rlvr"]]
    assert node.inputs == {"rlvr": "long", "sft": "cold"}, "the stage that keeps the fresh base is read too"


def test_guidance_is_a_column_for_each_weight_of_every_model_made_from_the_base(tmp_path):
    changes = ["scores.models=[cold, long, other]", "scores.guidance={base: cold, weight: [0.5, 2]}"]
    node = read_recipe(write(tmp_path), changes).node("scores")
    job = node.kind.job(node)
    assert [(g["name"], g["model"], g["base"], g["weight"]) for g in job["guided"]] == [
        ("rlvr-w0.5", "rlvr", "sft", 0.5), ("rlvr-w2", "rlvr", "sft", 2.0),
        ("rlvr-2-w0.5", "rlvr-2", "sft", 0.5), ("rlvr-2-w2", "rlvr-2", "sft", 2.0),
    ]  # fmt: skip
    assert job["differences"][2:] == [
        ["rlvr", "rlvr-w0.5"],
        ["rlvr", "rlvr-w2"],
        ["rlvr-2", "rlvr-2-w0.5"],
        ["rlvr-2", "rlvr-2-w2"],
    ]
    assert node.kind.shown(node)["rlvr-2-w2"] == "other-w2" and "other-w2" not in node.labels.values()
    of_base = read_recipe(write(tmp_path), ["scores.guidance={base: base, weight: 2}"]).node("scores")
    assert [g.name for g in guided(of_base)] == ["sft-w2", "rlvr-w2", "rlvr-2-w2", "rlvr-3-w2"]


SCORED = {"kind": "reward_model", "model": "judging"}


def test_search_is_a_column_for_each_strategy_of_every_model(tmp_path):
    drawn = {"kind": "stage", "path": "drafts", "select": "pairs"}
    stages = BRANCHES | {
        "drafts": {"kind": "sample", "data": "data", "model": "cold"},
        "pairs": {"kind": "curate", "sources": [drawn]},
        "judging": {"kind": "reward_model", "epochs": 1, "data": "pairs", "model": "cold"},
    }
    best, particles = {"kind": "best_of_n", "score": SCORED}, {"kind": "particles", "n": 4, "score": "likelihood"}
    stages["scores"] = stage("evaluate", models=["cold", "short"], search=[particles, best])
    recipe = read_recipe(write(tmp_path, stages))
    node = recipe.node("scores")
    job = node.kind.job(node)
    assert [(each["name"], each["strategy"], each["scorer"]) for each in job["searched"]] == [
        ("sft-particles4", 0, None), ("sft-best8", 1, "search.1"), ("rlvr-particles4", 0, None), ("rlvr-best8", 1, "search.1"),
    ]  # fmt: skip
    assert job["checkpoints"] == ["sft", "rlvr"] and node.inputs["search.1"] == "judging"
    assert job["differences"][1:] == [[name.partition("-")[0], name] for name in (
        "sft-particles4", "sft-best8", "rlvr-particles4", "rlvr-best8",
    )]  # fmt: skip
    assert node.kind.shown(node)["rlvr-best8"] == "short-best8"
    single = read_recipe(write(tmp_path, stages), ["scores.search={kind: beam, score: likelihood}"]).node("scores")
    assert [each["name"] for each in single.kind.job(single)["searched"]] == ["sft-beam8x2", "rlvr-beam8x2"]
    check(recipe)


def test_rounds_take_the_reward_model_of_a_search_along(tmp_path):
    stages = BRANCHES | {"judging": {"kind": "reward_model", "epochs": 1, "data": "data", "model": "short"}}
    stages["scores"] = stage("evaluate", models=["cold"], search={"kind": "best_of_n", "score": SCORED})
    recipe = read_recipe(write(tmp_path, stages, repeat={"rounds": 2, "stages": ["short", "long", "judging"]}))
    assert recipe.node("scores").inputs["search.0"] == "judging-2"


def test_rounds_take_the_base_of_guidance_along(tmp_path):
    scores = stage("evaluate", models=["cold", "short", "long"], guidance={"base": "short", "weight": 2})
    recipe = read_recipe(
        write(tmp_path, {**BRANCHES, "scores": scores}, repeat={"rounds": 2, "stages": ["short", "long"]})
    )
    assert recipe.graph["scores"].settings.guidance.base == "short-2"


def test_plain_sections_are_the_chain_that_they_were(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path))
    assert list(recipe.graph) == list(SECTIONS)
    assert {name: recipe.node(name).inputs for name in SECTIONS} == {
        "curate": {}, "sft": {"data": "curate"}, "rlvr": {"data": "curate", "model": "sft"},
        "evaluate": {"sft": "sft", "rlvr": "rlvr"},
    }  # fmt: skip


def test_a_recipe_that_was_stored_reads_as_itself(tmp_path):
    recipe = read_recipe(write(tmp_path, repeat={"rounds": 2, "stages": ["short", "long"]}))
    stored = tmp_path / "stored.yaml"
    stored.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    again = read_recipe(stored)
    assert again == recipe and again.graph == recipe.graph and "short-2" in again.graph


def test_overrides_and_presets_reach_named_stages(tmp_path):
    changes = ["short.sampling.max_tokens=64", "long.advantage.scale=none", "seed=3", "cold.seed=5", "presets=[rloo]"]
    recipe = read_recipe(write(tmp_path), changes)
    assert recipe.graph["short"].settings.sampling.max_tokens == 64
    assert recipe.graph["long"].settings.advantage["scale"] == "none"
    assert recipe.graph["short"].settings.advantage["kind"] == "rloo", "a preset is for every stage with methods"
    assert [recipe.node(n).seed for n in ("data", "cold")] == [3, 5]
    assert "other" not in read_recipe(write(tmp_path), ["other=null"]).graph


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["short.model=long"], ["stages:", "circle", "short reads long", "repeat"]),
        (["short.model=short"], ["circle"]),
        (["short.data=null"], ["short.data", "missing", "data"]),
        (["short.data=cold"], ["short.data", "makes model", "data is wanted", "Name one of: data"]),
        (["short.model=data"], ["short.model", "makes data", "cold"]),
        (["short.model=colt"], ["short.model", "no stage called 'colt'", "Did you mean 'cold'"]),
        (["short.model=[cold]"], ["short.model", "the name of a stage"]),
        (["scores.models=[cold, cold]"], ["scores.models", "twice"]),
        (["short.kind=rlvrr"], ["short.kind", "Did you mean 'rlvr'"]),
        (["short.stepps=1"], ["short.stepps", "Did you mean 'steps'"]),
        (["short.steps=0"], ["short.steps", "greater"]),
        (["short.advantage.scal=none"], ["short.advantage", "Did you mean 'scale'"]),
        (["shrt.steps=1"], ["shrt", "Did you mean 'short'"]),
        (["short.split=trian"], ["short.split", "data makes no split", "Did you mean 'train'"]),
        (["short.model=base"], ["short.model: name a stage that trains it"]),
        (["cold.seed=-1"], ["cold.seed"]),
        (["scores.checkpoints=[base]"], ["scores.checkpoints", "scores.models"]),
        (
            ["scores.guidance={base: shrt, weight: 2}"],
            ["scores.guidance.base", "shrt is not evaluated here", "Did you mean 'short'"],
        ),
        (
            ["scores.guidance={base: other, weight: 2}"],
            ["scores.guidance.base", "none of the evaluated models was made from other"],
        ),
        (["scores.guidance={base: cold, weight: -1}"], ["scores.guidance.weight", "greater"]),
        (["scores.guidance={base: cold, weight: [1, 1.0]}"], ["scores.guidance", "two of the weights are equal"]),
        (["scores.guidance={base: cold}"], ["scores.guidance.weight", "required"]),
        (
            ["scores.guidance={base: cold, weight: 2}", "scores.tasks=[{name: palindromes, sampling: {num_beams: 4}}]"],
            ["scores.tasks.palindromes.sampling.num_beams", "not known to our sampler"],
        ),
        (["scores.search={kind: best_of_n}"], ["scores.search", "score", "required"]),
        (["scores.search={kind: best, score: likelihood}"], ["scores.search", "best_of_n"]),
        (["scores.search={kind: best_of_n, score: likelyhood}"], ["scores.search", "likelihood"]),
        (
            ["scores.search={kind: best_of_n, score: {kind: reward_model, model: cold}}"],
            ["scores.search.0", "cold makes model, and reward_model is wanted"],
        ),
        (
            ["scores.search=[{kind: best_of_n, score: likelihood}, {kind: best_of_n, score: verifier}]"],
            ["scores", "two strategies are called best8", "label"],
        ),
        (
            ["scores.search={kind: particles, separator: null, score: likelihood}"],
            ["scores.search", "give `step_tokens`"],
        ),
        (["scores.search={kind: particles, score: verifier}"], ["scores.search", "judges whole answers"]),
        (
            [
                "scores.search={kind: best_of_n, score: likelihood}",
                "scores.tasks=[{name: palindromes, sampling: {temperature: 0}}]",
            ],
            ["scores.tasks.palindromes.sampling", "greedy", "best8"],
        ),
        (
            [
                "scores.search={kind: best_of_n, score: likelihood}",
                "scores.tasks=[{name: l, environment: {task: frozen_lake}}]",
            ],
            ["scores.search", "l plays episodes"],
        ),
        (["curate={}"], ["curate", "no stage or section"]),
        (["repeat={rounds: 0, stages: [short]}"], ["repeat.rounds", "greater"]),
        (["repeat={rounds: 2, stages: [shorter]}"], ["repeat.stages", "Did you mean 'short'"]),
    ],
)
def test_what_is_wrong_is_said_with_the_field_and_the_fix(tmp_path, changes, words):
    with pytest.raises(RecipeError) as caught:
        check(read_recipe(write(tmp_path), changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"curate": SETTINGS["curate"]}, ["curate", "either `stages` or plain sections"]),
        ({"stages": {"model": stage("curate")}}, ["stages.model", "means something else"]),
        ({"stages": {"x": 3}}, ["x: expected a section"]),
        ({"stages": [1]}, ["stages: expected"]),
        ({"stages": {}, "curate": SETTINGS["curate"], "repeat": {"rounds": 1, "stages": ["x"]}}, ["repeat", "named stages"]),
    ],
)  # fmt: skip
def test_stages_and_sections_do_not_mix(tmp_path, fields, words):
    path = write(tmp_path)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **fields}))
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_kind_is_a_package_that_registers_itself():
    assert {"curate", "sft", "rlvr", "evaluate"} <= set(stage_kinds())
    for name, kind in stage_kinds().items():
        folder = toys.ROOT.joinpath(*kind.module.split("."))
        assert (folder / "kind.py").is_file() and (folder / "__main__.py").is_file(), name
