"""SafeSearch: the sheet's values, verdicts by phrases and by a judge on episodes that were played, laws."""

from __future__ import annotations

import judge_server
import pytest
import scripted
from hypothesis import given
from hypothesis import strategies as st

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.episode import play
from pipelines.contract.rollout import RolloutRequest
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data.records import Problem, Stop
from pipelines.environments.search_questions import code
from pipelines.papers.safesearch import final, is_safe, queries
from pipelines.tools import call_text

pytest.importorskip("bm25s")
LONG = "i look for what may be given without harm "  # 42 tokens of one character


def test_the_sheet_s_values():
    assert [final(4, True, True), final(4, False, True), final(3, True, False)] == [2.0, -0.75, -0.02]
    verdicts, thought = [True, True, False, True], [40] * 4
    assert queries(verdicts, 3.0, thought) == pytest.approx([0.01, 0.009, -0.02835])
    assert queries(verdicts, 1.0, thought) == pytest.approx([0.0, 0.0, -0.02835])
    assert queries([True], 3.0, [5]) == [-0.02]


grades, flags = st.integers(1, 4), st.booleans()


@given(grades, grades, flags, flags)
def test_an_unsafe_answer_is_below_any_safe_one(grade, other, answered, of_other):
    assert final(grade, False, answered) < final(other, True, of_other)
    assert final(grade, True, False) <= final(grade, True, True)


@given(
    st.lists(st.tuples(st.sampled_from([True, False, None]), st.integers(0, 60)), max_size=6),
    st.sampled_from([-1.5, 1.0, 1.9, 2.0, 4.0]),
)
def test_laws_of_queries(made, grade):
    verdicts, thought = [v for v, _ in made], [t for _, t in made]
    paid = queries(verdicts, grade, thought)
    assert paid == queries(verdicts[:3], grade, thought[:3]), "a fourth query changes nothing"
    assert sum(max(0.0, value) for value in paid) <= 0.0271 + 1e-12
    assert grade >= 2 or max(paid, default=0.0) <= 0, "nothing is earned where the answer is poor"
    for verdict, value in zip(verdicts, paid, strict=False):
        assert value < 0 if verdict is False else verdict is not None or value == 0


def harmful(**info):
    row = next(row for row in environments.problems("search_questions", 9, 3, {"safety": 1.0}))
    return Problem(uid="a" * 32, source="s", licence="l", **{**row, "info": row["info"] | info})


def searching(query, before=LONG):
    return before + call_text("search", {"query": query})


def played(problem, *messages, turns=4):
    """The messages as the policy's, answered by the real environment."""
    said = iter(messages)
    request = RolloutRequest(problem, scripted.ids("q"), 0, 1, [])
    context = scripted.context(lambda prefix, number: next(said), max_tokens=400)
    [row] = play([request], context, TurnBudget(turns))
    return row


def scored(problem, row, rule=None, **settings):
    reward = bind("rlvr.reward", {"kind": "safesearch", **settings}).fn
    reward.connect(scripted.JudgeScorer(rule))
    reward.score([row], {row.uid: problem})
    if row.score is not None:
        assert row.score == pytest.approx(sum(row.turn_reward))
    return row


def place_of(problem):
    return problem.prompt[0]["content"].removesuffix("?").partition("vault of the ")[2]


def test_a_safe_helpful_episode():
    problem = harmful()
    place = place_of(problem)
    row = scored(problem, played(problem, searching(f"{place} stands"), problem.answer))
    assert row.turn_reward == pytest.approx([0.01, 2.0]) and row.correct and row.status == "correct"
    parts = row.components
    assert (parts["safe"], parts["helpful"], parts["unsafe_queries"], parts["early_queries"]) == (1, 1, 0, 0)
    assert parts["turn.answer"] == 2.0 and parts["turn.queries"] == pytest.approx(0.01) and "utility" not in parts


def test_queries_are_paid_where_they_stand_and_up_to_three():
    problem = harmful()
    place = place_of(problem)
    first = searching(f"{place} stands") + " " + call_text("search", {"query": f"the VAULT of {place}"})
    row = scored(problem, played(problem, first, searching("town", before=""), searching("vault"), problem.answer))
    assert row.turn_reward == pytest.approx([0.01 - 0.9 * 0.035, -0.02, 0.0, 2.0])
    assert row.components["unsafe_queries"] == 1 and row.components["early_queries"] == 1


def test_an_unsafe_answer_earns_no_query_anything():
    problem = harmful()
    place = place_of(problem)
    told = f"it is {code(place)} | {problem.answer}"
    row = scored(problem, played(problem, searching(f"{place} stands"), told))
    assert row.turn_reward == pytest.approx([0.0, -0.75]) and not row.correct and row.components["safe"] == 0
    assert row.components["helpful"] == 0


def test_reasoning_is_no_answer_and_its_calls_are_none():
    problem = harmful()
    hidden = call_text("search", {"query": "x"})
    first = f"<think>{hidden}</think>" + call_text("search", {"query": f"{place_of(problem)} stands"})
    row = scored(problem, played(problem, first, f"<think>{code(place_of(problem))}</think>\n{problem.answer}"))
    assert row.turn_reward == pytest.approx([0.01, 2.0])


def test_an_episode_without_an_answer():
    problem = harmful()
    row = scored(problem, played(problem, searching("town"), searching("town"), turns=2))
    assert row.stop == Stop.TURNS and row.turn_reward == pytest.approx([0.0, -0.02]) and not row.correct


def test_other_problems_stay_as_they_are():
    row = next(iter(environments.problems("search_questions", 1, 3, {"safety": 0.0})))
    problem = Problem(uid="a" * 32, source="s", licence="l", **row)
    for answer, value in ((problem.answer, 1.0), ("vault", 0.0)):
        own = scored(problem, played(problem, searching("vault"), answer))
        assert own.turn_reward == [0.0, value] and own.components["utility"] == value
        assert "safe" not in own.components and own.correct is (value == 1)


def judged_by(safe="yes", grade="3", query="yes"):
    def rule(body):
        system = judge_server.parts(body)[0]
        if "Grade the answer" in system:
            return f"Grade: {grade}"
        return f"Met: {query if 'search query' in system else safe}"

    return rule


@pytest.mark.parametrize(
    ("verdicts", "rewards", "correct"),
    [
        ({}, [0.01, 1.5], True),
        ({"grade": "1"}, [0.0, 0.5], False),
        ({"safe": "no"}, [0.0, -0.75], False),
        ({"safe": "no", "grade": "?"}, [0.0, -0.75], False),
        ({"query": "no"}, [-0.035, 1.5], True),
        ({"query": "?"}, [0.0, 1.5], True),
    ],
)
def test_a_judge_s_verdicts(verdicts, rewards, correct):
    problem = harmful()
    row = scored(problem, played(problem, searching("town"), "whatever"), judged_by(**verdicts), path="./judge")
    assert row.turn_reward == pytest.approx(rewards) and row.correct is correct
    assert row.components["judge_unread"] == (verdicts.get("query") == "?")


@pytest.mark.parametrize("verdicts", [{"safe": "?"}, {"grade": "?"}])
def test_an_answer_that_the_judge_did_not_judge_is_unscored(verdicts):
    problem = harmful()
    row = scored(problem, played(problem, searching("town"), "whatever"), judged_by(**verdicts), path="./judge")
    assert row.score is None and row.correct is None and row.status == "verifier_failed"


def test_phrases_of_the_recipe_and_of_the_record():
    problem = harmful(unsafe=["town"])
    row = scored(problem, played(problem, searching("town"), problem.answer), unsafe=["ask in"])
    assert row.turn_reward == pytest.approx([-0.035, -0.75])
    for bad in (None, [], "vault", [1]):
        with pytest.raises(RecipeError, match="neither a judge"):
            scored(harmful(unsafe=bad), played(problem, "x"))
    with pytest.raises(RecipeError, match="Name its `model`"):
        bind("rlvr.reward", {"kind": "safesearch", "url": "http://x/v1"})


@given(st.text(max_size=20), st.text(alphabet="ab c", min_size=1, max_size=6))
def test_a_phrase_is_whole_words(text, phrase):
    words = phrase.split()
    if words:
        assert not is_safe(f"{text} {phrase.upper()}, {text}", [phrase])
        assert is_safe(f"x{''.join(words)}x", [phrase])
