"""`whetstone rubric`: a rubric drafted over HTTP, and what it is worth on other pairs."""

from __future__ import annotations

import json

import judge_server
import pytest
import toys
import yaml

from flows import cli
from flows.rubric import _pairs
from pipelines.data.records import Problem
from pipelines.errors import DataError, RecipeError
from pipelines.judges import drafting
from pipelines.judges.pairwise import PairwiseJudge

SHORT = "It is short."


def critic(body):
    """Writes a useless criterion first and a good one when told; compares by length only where the good one stands in the question."""
    system = body["messages"][0]["content"]
    first, second = judge_server.pair(body)
    if "Criterion: TEXT" in system:
        if first == "hopeless":
            return "Criterion: It is green."
        return f"Criterion: {SHORT}\nCriterion: It ends." if "It is nice." in system else "Criterion: It is nice."
    if SHORT not in system:
        return "First: 5\nSecond: 5"
    return f"First: {10 - len(first)}\nSecond: {10 - len(second)}"


PAIRS = [("a", "bbb"), ("cc", "dddd"), ("hopeless", "x"), ("a", "ee"), ("ffff", "g"), ("h", "iii")]


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))


def test_criteria_that_reproduce_the_label_are_kept_and_the_others_thrown_away():
    problem = Problem(
        uid="u", prompt=[{"role": "user", "content": "?"}], answer="", verifier="exact", source="s", licence="l"
    )
    pairs = [(problem, *texts) for texts in PAIRS]
    with judge_server.running(critic) as server:
        judge = PairwiseJudge({"model": "critic", "url": server.url, "low": -10}, "rlvr.reward.judge")
        once = drafting.draft(judge, pairs[:3], rounds=1)
        draft = drafting.draft(judge, pairs[:3], rounds=2)
        without = drafting.agreement(judge, pairs[3:], [])
        with_them = drafting.agreement(judge, pairs[3:], draft.criteria)
    assert (once.criteria, once.kept, once.discarded) == ([], 0, 3)
    assert (draft.criteria, draft.support, draft.kept, draft.discarded) == ([SHORT, "It ends."], [2, 2], 2, 1)
    assert without == (0.0, 1.0) and with_them == pytest.approx((2 / 3, 0.0))


def test_the_command_prints_what_a_recipe_takes(tmp_path, capsys):
    rows = [{"prompt": "?", "chosen": a, "rejected": b} for a, b in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = toys.recipe(tmp_path)
    with judge_server.running(critic) as server:
        reward = f"rlvr.reward={{kind: auto_rubric, judge: {{model: critic, low: -10, url: '{server.url}'}}}}"
        asked = ["rubric", str(recipe), str(tmp_path / "pairs.jsonl")]
        assert cli.rubric_command(cli.parser().parse_args([*asked, "--set", reward])) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == {"criteria": [SHORT, "It ends."]}
    assert "1 discarded" in text and "without criteria: 0.000 of 3" in text and "with them: 0.667 of 3" in text
    with pytest.raises(RecipeError, match="no judge of pairs"):
        cli.rubric_command(cli.parser().parse_args(asked))


def test_bad_rows_are_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "p", "chosen": "a"}\n')
    with pytest.raises(DataError, match=r"line 1.*rejected"):
        _pairs(tmp_path / "x.jsonl")
