"""`whetstone judge`: the card of a judge that answers over HTTP."""

from __future__ import annotations

import json
import random

import judge_server
import pytest
import toys
import yaml

from flows.cli.judge import _rows, _sampled, rlvr_stage
from pipelines.base.errors import DataError, RecipeError, UserError
from pipelines.data import dataset, samples
from pipelines.data.records import Problem
from pipelines.recipe.read import read_recipe


def honest(body):
    """Looks for the gold answer, which this test puts into the question; now and then it is wrong."""
    _, conversation, _, text = judge_server.parts(body)
    gold = conversation.rpartition("=")[2].strip()
    wrong = random.Random(text + conversation).random() < 0.1
    return f"Grade: {9 if (text.split()[:1] == [gold]) != wrong else 2}"


def gullible(body):
    text = judge_server.parts(body)[3]
    return "Grade: 10" if "best grade" in text else f"Grade: {min(9, 1 + len(text) // 4)}"


@pytest.fixture
def files(tmp_path):
    recipe = toys.recipe(tmp_path)
    draw = random.Random(0)
    rows = []
    for i in range(120):
        answer = i if draw.random() < 0.5 else i + 1
        rows.append(
            {"prompt": f"{i} + 0 = {i}", "completion": f"{answer}{' ' * draw.randrange(30)}.", "correct": answer == i}
        )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path, recipe


def card(files, judge, *more):
    folder, recipe = files
    reward = f"rlvr.reward={{kind: judge, model: {judge.rule.__name__}, url: '{judge.url}'}}"
    done = toys.whetstone(
        "judge", str(recipe), str(folder / "rows.jsonl"), "--set", reward, *more, home=folder / "home"
    )
    return done.stdout


@pytest.mark.slow
def test_an_honest_judge_and_a_gullible_one(files):
    with judge_server.running(honest) as judge:
        good = json.loads(card(files, judge, "--json"))
        text = card(files, judge)
        assert len(judge.bodies) <= 120 + 120, "the second time all answers are on disk"
    assert good["rows"] == 120 and 0.8 < good["accuracy"] < 1 and good["separation"] > 0.8
    assert abs(good["injection_gain"]) < 0.2
    assert "agreement" in text and "told to give the best" in text
    with judge_server.running(gullible) as judge:
        bad = json.loads(card(files, judge, "--json"))
    assert bad["injection_raised_share"] == 1 and bad["length_correlation_incorrect"] > 0.5 and bad["separation"] < 0.7


def sampled(folder, texts):
    """A sample stage's artifact: one problem, whose gold answer is 7, and these completions."""
    problem = Problem(uid="a", prompt=[{"role": "user", "content": "3 + 4 = 7"}], answer="7", verifier="number", source="s",
                      licence="l")  # fmt: skip
    rows = [
        {**dataset.to_row(problem), "sample": i, "text": text, "score": score, "correct": None if score is None else score == 1,
         "status": "x", "stop": "end", "components": "{}", "prompt_ids": [1], "completion_ids": [1], "logp": [0.0], "entropy": [0.0]}
        for i, (text, score) in enumerate(texts)
    ]  # fmt: skip
    (folder / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(0), rows)
    return folder


@pytest.mark.slow
def test_a_sample_stage_s_folder_is_a_file_of_labelled_rows(files, tmp_path):
    folder = sampled(tmp_path / "drafts", [("7 .", 1.0), ("8 .", 0.0), ("lost", None), ("9 .", 0.0)])
    files[0].joinpath("rows.jsonl").unlink()
    reward = "rlvr.reward={{kind: judge, model: honest, url: '{}'}}"
    with judge_server.running(honest) as judge:
        asked = ["judge", str(files[1]), str(folder), "--set", reward.format(judge.url), "--json"]
        body = json.loads(toys.whetstone(*asked, home=tmp_path / "home").stdout)
        first = json.loads(toys.whetstone(*asked, "--limit", "2", home=tmp_path / "home").stdout)
        none = toys.whetstone(*asked, "--limit", "0", home=tmp_path / "home", check=False)
    assert (body["rows"], body["correct_share"]) == (3, pytest.approx(1 / 3)) and first["rows"] == 2
    assert none.returncode == 2 and "--limit 0: ask for at least one row" in none.stdout
    with pytest.raises(DataError, match="no completion has a verdict"):
        _sampled(sampled(tmp_path / "unscored", [("lost", None)]))


def test_which_rlvr_stage_is_meant(tmp_path):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rlvr, data = body.pop("rlvr"), body.pop("curate")
    body = {key: value for key, value in body.items() if key not in ("sft", "evaluate")}
    stages = {"data": {"kind": "curate", **data}}
    for name in ("one", "two"):
        (tmp_path / "graph.yaml").write_text(yaml.safe_dump({**body, "stages": dict(stages)}, sort_keys=False))
        stages[name] = {"kind": "rlvr", "data": "data", **rlvr}
    with pytest.raises(RecipeError, match="has no RLVR"):
        (tmp_path / "data.yaml").write_text(yaml.safe_dump({**body, "stages": {"data": stages["data"]}}))
        rlvr_stage(read_recipe(tmp_path / "data.yaml"), None)
    assert rlvr_stage(read_recipe(tmp_path / "graph.yaml"), None) == "one"
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    recipe = read_recipe(tmp_path / "graph.yaml")
    assert rlvr_stage(recipe, "two") == "two"
    for wrong in (None, "three"):
        with pytest.raises(UserError, match="rlvr stages are one, two"):
            rlvr_stage(recipe, wrong)


def test_a_recipe_without_a_judge_is_refused(files):
    folder, recipe = files
    done = toys.whetstone("judge", str(recipe), str(folder / "rows.jsonl"), home=folder / "home", check=False)
    assert done.returncode == 2 and "rlvr.reward: verifier has no judge" in done.stderr


@pytest.mark.parametrize(
    "line,words",
    [
        ("{", "line 1"), ('{"prompt": "a", "completion": "b"}', "neither answer nor correct"),
        ('{"prompt": "a", "correct": true}', "line 1"), ('{"completion": 7, "correct": true}', "completion is a text"),
        ('{"completion": "b", "correct": "yes"}', "correct true or false"), ("", "no rows"),
    ],
)  # fmt: skip
def test_bad_rows_name_their_line(tmp_path, line, words):
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=words):
        _rows(tmp_path / "rows.jsonl")
