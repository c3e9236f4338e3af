"""Generated problems of one turn: gold answers pass, errors fail, and no test problem is ever trained on."""

from __future__ import annotations

import itertools
import sqlite3

import pytest

from pipelines import environments, verifiers
from pipelines.data.records import Problem
from pipelines.environments import one_liners, table_questions

TASKS = ("one_liners", "table_questions", "drawn_questions")


def rows(task, size, seed=1, **config):
    return list(environments.problems(task, size, seed, config))


def verdicts(drawn, text):
    return verifiers.verify_many([(row["verifier"], text(row), row["answer"], row["info"]) for row in drawn])


@pytest.mark.parametrize("task", TASKS)
def test_gold_answers_pass_and_errors_fail(task):
    drawn = rows(task, 60, demonstrations=True, errors=1.0)
    assert all(verdict.correct for verdict in verdicts(drawn, lambda row: row["answer"]))
    failed = [not verdict.correct for verdict in verdicts(drawn, lambda row: row["info"]["solution"])]
    assert sum(failed) >= 0.9 * len(failed), "an error is one that the tests see"
    exact = rows(task, 40, demonstrations=True, errors=0.0)
    assert [row["info"]["solution"] for row in exact] == [row["answer"] for row in exact]
    half = rows(task, 200, demonstrations=True, errors=0.5)
    assert 0.35 < sum(row["info"]["solution"] != row["answer"] for row in half) / 200 < 0.65
    assert "solution" not in rows(task, 1)[0]["info"]


@pytest.mark.parametrize("task", TASKS)
def test_test_problems_are_never_trained_on(task):
    asked = "prompt" if task == "drawn_questions" else "answer"
    train, test = (
        {str(row[asked]) for row in rows(task, 400, seed, part=part)} for seed, part in ((1, "train"), (2, "test"))
    )
    assert len(test) > 50 and not train & test


@pytest.mark.parametrize("task", TASKS)
def test_problems_depend_on_the_seed_alone(task):
    assert rows(task, 5) == rows(task, 5) != rows(task, 5, seed=2)
    bare = [row["prompt"] for row in rows(task, 5, demonstrations=True, errors=0.5)]
    assert bare == [row["prompt"] for row in rows(task, 5)]


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_is_one_message(task):
    (row,) = rows(task, 1)
    problem = Problem(uid="u", source="s", licence="l", **row)
    world = environments.make(task)
    assert world.reset(problem) == problem.prompt
    copy = environments.make(task)
    copy.load_state_dict(world.state_dict())
    assert copy.state_key() == world.state_key()
    good, bad = world.step(row["answer"]), copy.step("I do not know")
    assert good.done and good.reward == 1.0 and good.info["success"] and good.components == {"answer": 1.0}
    assert bad.done and not bad.info["success"] and copy.state_key() != world.state_key()


def test_every_program_computes_what_its_text_says():
    for parts in itertools.islice(itertools.product(*one_liners.PARTS), 0, None, 37):
        program = one_liners.Program(*parts)
        scope: dict = {}
        exec(program.source(), scope)
        for values in ([], [3, -1, 4, 1, -5, 9, 2, 6], list(range(12))):
            assert scope["f"](values) == program.run(values), program.source()


def test_data_tell_a_query_from_its_siblings():
    for row in rows("table_questions", 40):
        database = sqlite3.connect(":memory:")
        database.executescript(row["info"]["schema"])
        gold = sorted(database.execute(row["answer"]))
        assert gold and gold != [(None,)]
        for old, new in ((" > ", " >= "), (" <= ", " < "), ("AVG", "MAX"), (" DESC", " ASC")):
            if old in row["answer"]:
                assert sorted(database.execute(row["answer"].replace(old, new))) != gold
        database.close()


def test_a_query_is_graded():
    (row,) = rows("table_questions", 1)
    name = row["prompt"][0]["content"].partition("(")[0]
    texts = (row["answer"], f"SELECT 1 FROM {name}", "SELECT nothing FROM nowhere")
    assert [verdicts([row], lambda row, t=text: t)[0].score for text in texts] == [1.0, 0.1, 0.0]
    assert table_questions.KINDS
