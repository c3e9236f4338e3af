"""`whetstone rubric`: a rubric drafted over HTTP, and what it is worth on other pairs."""

from __future__ import annotations

import json

import judge_server
import pytest
import toys
import yaml

from flows.cli import main as cli
from flows.cli import rubric
from flows.cli.rubric import _pairs
from pipelines.base.errors import DataError, RecipeError
from pipelines.data.records import Problem
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
        assert rubric.command(cli.parser().parse_args([*asked, "--set", reward])) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == {"criteria": [SHORT, "It ends."]}
    assert "1 discarded" in text and "without criteria: 0.000 of 3" in text and "with them: 0.667 of 3" in text
    with pytest.raises(RecipeError, match="no judge of pairs"):
        rubric.command(cli.parser().parse_args(asked))


def test_bad_rows_are_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "p", "chosen": "a"}\n')
    with pytest.raises(DataError, match=r"line 1.*rejected"):
        _pairs(tmp_path / "x.jsonl")


def letters(body):
    """Sees letters, and writes about two answers what one of them lacks."""
    system = body["messages"][0]["content"]
    if "further criteria" in system:
        first, second = judge_server.pair(body)
        return "\n".join(f"Criterion (weight 2): It has {letter}." for letter in sorted(set(first) ^ set(second)))
    letter = system.split("It has ")[1][0]
    return f"Met: {'yes' if letter in judge_server.parts(body)[3] else 'no'}"


def refined(tmp_path, server, *more, criteria="[{criterion: It has a., weight: 3}]"):
    reward = f"rlvr.reward={{kind: judge, form: rubric, model: m, url: '{server.url}', criteria: {criteria}}}"
    asked = ["rubric", str(toys.recipe(tmp_path)), str(tmp_path / "rows.jsonl"), "--refine", "--set", reward, *more]
    return rubric.command(cli.parser().parse_args(asked))


def write(tmp_path, *rows):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_judge_s_rubric_is_refined_and_measured_on_other_problems(tmp_path, capsys):
    write(
        tmp_path,
        *({"prompt": "?", "answers": texts} for texts in (["ab", "a"], ["ab", "ac"], ["ab", "a", "x"], ["ac", "a"])),
    )
    with judge_server.running(letters) as server:
        assert refined(tmp_path, server) == 0
    text = capsys.readouterr().out
    criteria = [
        {"criterion": "It has a.", "weight": 3},
        {"criterion": "It has b.", "weight": 2},
    ]
    assert yaml.safe_load(text) == {"criteria": criteria}
    assert "refined on: the two best answers told apart in 0.000 of 2 problems before, 1.000 after" in text
    assert "others: the two best answers told apart in 0.000 of 2 problems before, 0.500 after" in text


def test_each_problem_s_own_rubric_is_written_down(tmp_path, capsys):
    write(
        tmp_path, {"prompt": "p", "answers": ["ab", "a"], "rubric": ["It has a."]}, {"prompt": "q", "answers": ["ac", "a"]},
    )  # fmt: skip
    with judge_server.running(letters) as server:
        assert refined(tmp_path, server, "--own", str(tmp_path / "out.jsonl")) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [[c["criterion"] for c in row["rubric"]] for row in rows] == [
        ["It has a.", "It has b."],
        ["It has a.", "It has c."],
    ]
    assert "before, 1.000 after" in capsys.readouterr().out


def test_a_sample_stage_s_answers(tmp_path, capsys):
    from pipelines.data import samples
    from pipelines.data.dataset import to_row

    row = to_row(
        Problem(
            uid="u", prompt=[{"role": "user", "content": "?"}], answer="", verifier="exact", source="s", licence="l"
        )
    )
    rest = {
        "status": "",
        "components": "{}",
        "prompt_ids": [],
        "completion_ids": [],
        "logp": [],
        "entropy": None,
        "score": None,
        "correct": None,
    }
    drawn = [{**row, **rest, "sample": i, "text": text, "stop": "end"} for i, text in enumerate(["ab", "a", "a"])]
    (tmp_path / "rows.jsonl" / "samples").mkdir(parents=True)
    toys.write_samples(tmp_path / "rows.jsonl" / "samples" / samples.shard_name(0), drawn)
    with judge_server.running(letters) as server:
        assert refined(tmp_path, server) == 0
    assert "It has b." in capsys.readouterr().out


def test_what_cannot_be_refined_is_named(tmp_path):
    write(tmp_path, {"prompt": "?", "answers": ["a"]})
    with judge_server.running(letters) as server:
        with pytest.raises(DataError, match="answers are two texts or more"):
            refined(tmp_path, server)
        with pytest.raises(RecipeError, match="none to refine"):
            write(tmp_path, {"prompt": "?", "answers": ["a", "b"]})
            refined(tmp_path, server, criteria="[]")
        with pytest.raises(RecipeError, match="has no criteria to refine"):
            refined(tmp_path, server, "--set", "rlvr.reward={kind: judge, model: m}")
