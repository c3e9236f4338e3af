"""Functions of the user's: whether they can be called as a stage will, and what a reward function says to the first rows of the data."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipelines.data.records import Problem, Role, Stop, Trajectory
from tasks.preflight import data as preflight_data

NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ROWS, ROWS_READ = 2, 1000
"""Records of each source that a reward function is called with, and rows of which they are the first."""
CALL_S = 60.0
"""A function that takes longer, such as one that loads a model, is not waited for: the stage has a limit of its own."""
NO_ANSWER = "I do not know."


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Whether a function by name can be called, and what is wrong with what it returns; nothing where nothing is."""
    from pipelines.base.user_functions import load_function

    function = load_function(question["name"], question["field"])
    if problem := _refusal(function, question):
        return {"problem": problem}
    return _called(function, question) if question.get("sources") else {}


def _refusal(function: Any, question: dict[str, Any]) -> str:
    """Why the function cannot be called as the stage will; empty where it can."""
    from pipelines.rlvr.function_keywords import accepted

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return f"{question['name']} is a generator; a function that returns is called"
    if inspect.iscoroutinefunction(function) and not question.get("awaited"):
        return f"{question['name']} is a coroutine; an ordinary function is called"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    keywords = question["keywords"]
    refusal = f"{question['name']}{signature} cannot be called with {question['called']}"
    if question.get("columns"):  # the data's own columns, which are not known here
        required = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind in NAMED]
        known = accepted(function, dict.fromkeys(keywords))
        if not known:
            return f"{refusal}: it takes none of them"
        keywords = [*known, *(name for name in required if name not in keywords)]
    try:
        signature.bind(*question["positional"], **dict.fromkeys(keywords))
    except TypeError as error:
        return f"{refusal} ({error})"
    return ""


def _called(function: Any, question: dict[str, Any]) -> dict[str, Any]:
    """What is wrong when a reward function scores a right and a wrong answer to the first records; empty where nothing is."""
    from pipelines.base.errors import RecipeError
    from pipelines.rlvr import function_keywords, scoring

    problems = {problem.uid: problem for problem in _first_records(question["sources"])}
    rows = [_answered(problem, text) for problem in problems.values() for text in (_right_answer(problem), NO_ANSWER)]
    limit = question.get("timeout_s")
    timeout_s = min(CALL_S, limit) if limit else CALL_S
    try:
        with function_keywords.session(function_keywords.Session(0, question["steps"])):
            scoring.values_of(question["name"], function, rows, problems, timeout_s=timeout_s)
    except RecipeError as error:
        if isinstance(error, scoring.FunctionTimeout) and timeout_s != limit:
            return {}
        called = f"It was called with {len(rows)} answers to the first {len(problems)} records."
        error.problems = [replace(told, fix=f"{told.fix} {called}".lstrip()) for told in error.problems]
        return preflight_data.refusal(error.moved("rlvr.reward_functions", ""))
    return {}


def _first_records(sources: list[dict[str, Any]]) -> Iterator[Problem]:
    """The first records that ask something, of each source; none of one that cannot be read, of which another question tells."""
    from pipelines.base.errors import UserError
    from pipelines.curate.answered import has_answers
    from pipelines.curate.mapping import to_problem
    from pipelines.curate.sources import rows
    from pipelines.curate.values import RowError
    from pipelines.recipe.settings import Source

    for each in sources:
        source = Source.model_validate(each)
        records = 0
        try:
            answered = has_answers(source)
            for row in rows(source.model_copy(update={"size": min(source.size or ROWS_READ, ROWS_READ)})):
                if row.columns is None:
                    continue
                try:
                    problem = to_problem(row.columns, source, self_check=False, answered=answered)
                except RowError:
                    continue
                if problem.prompt:
                    yield problem
                    records += 1
                if records == ROWS:
                    break
        except UserError:
            continue


def _right_answer(problem: Problem) -> str:
    from pipelines import verifiers

    return str(
        problem.info.get("solution") or verifiers.gold(problem.verifier, problem.answer, problem.info) or problem.answer
    )


def _answered(problem: Problem, text: str) -> Trajectory:
    """A rollout with this completion; its token ids are bytes."""
    ids = list(text.encode(errors="replace"))
    return Trajectory(
        uid=problem.uid, group=0, tokens=[0, *ids], role=[Role.PROMPT, *[Role.POLICY] * len(ids)], logp_old=[0.0] * (len(ids) + 1),
        max_tokens=len(ids) + 1, stop=Stop.END, version=0, text=text, score=0.0,
    )  # fmt: skip
