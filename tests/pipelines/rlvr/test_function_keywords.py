"""TRL's signature of reward functions in full: columns, the trainer's state, what is logged, coroutines."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import torch
from method_toys import answer
from transformers import TrainerState

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.rlvr import function_keywords as keywords
from pipelines.rlvr import scoring

UIDS = ("a" * 32, "b" * 32)
PROBLEMS = {
    uid: Problem(
        uid=uid, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="sums", licence="l",
        info=info,
    )
    for uid, info in zip(UIDS, ({"level": 1, "solution": "2 + 2 = 4", "answer": "taken"}, {"level": 2}), strict=True)
}  # fmt: skip


def rows(*texts):
    return [answer(uid, 0, text, score=0.0) for uid, text in zip(UIDS, texts, strict=False)]


def call(function, *texts, session=None):
    scored = rows(*(texts or ("4", "5")))
    with keywords.session(session or keywords.Session(3, 10)):
        scoring.add([("mine", function)], scored, PROBLEMS)
    return scored


def test_every_column_of_the_record_arrives():
    heard = {}

    def mine(prompts, completions, completion_ids, **columns):
        heard.update(columns, prompts=prompts, completions=completions, ids=completion_ids)
        return [0.0] * len(prompts)

    call(mine)
    assert heard["level"] == [1, 2] and heard["solution"] == ["2 + 2 = 4", None]
    assert heard["answer"] == ["4", "4"], "an entry of info does not hide a column"
    assert (heard["uid"], heard["source"], heard["verifier"]) == ([*UIDS], ["sums"] * 2, ["number"] * 2)
    assert heard["completions"] == [[{"role": "assistant", "content": text}] for text in ("4", "5")]
    assert heard["prompts"][0] == PROBLEMS[UIDS[0]].prompt and len(heard["ids"]) == 2
    assert set(heard) >= {"trainer_state", "log_extra", "log_metric", "info"}


def test_the_prompt_is_what_the_row_was_asked():
    """In a game that the policy plays with itself each seat is asked something else."""
    second = [{"role": "user", "content": "you are the second"}]
    scored = rows("4", "5")
    scored[1].prompt = second
    heard = []
    scoring.add([("mine", lambda prompts, completions: heard.extend(prompts) or [0.0, 0.0])], scored, PROBLEMS)
    assert heard == [PROBLEMS[UIDS[0]].prompt, second]


def test_a_function_is_given_what_it_takes():
    assert [row.score for row in call(lambda completions, level: [float(x) for x in level])] == [1.0, 2.0]
    assert [row.score for row in call(lambda *, answer: [float(a) for a in answer])] == [4.0, 4.0]
    with pytest.raises(RecipeError, match=r"mine raised TypeError.*nonsense"):
        call(lambda completions, nonsense: [])


def test_the_trainer_s_state_is_transformers_own():
    states = []

    def mine(completions, trainer_state, **_):
        states.append(trainer_state)
        return [trainer_state.global_step / trainer_state.max_steps] * 2

    assert call(mine)[0].score == 0.3 and isinstance(states[0], TrainerState)
    assert scoring.values_of(
        "mine", lambda trainer_state: [trainer_state.global_step] * 2, rows("4", "5"), PROBLEMS
    ) == [0, 0]


def test_what_is_logged_is_kept_with_the_row_and_the_step():
    session = keywords.Session(0, 1)

    def mine(completions, log_extra, log_metric, **_):
        log_extra("parsed", [c[0]["content"] + "!" for c in completions])
        log_extra("length", np.array([1, 2]))
        log_extra("odd", [torch.tensor(0.5), float("nan")])
        log_metric("accuracy", 0.25)
        log_metric("accuracy", torch.tensor(0.75))
        return [None, 1.0]

    scored = call(mine, session=session)
    assert [row.logged for row in scored] == [
        {"parsed": "4!", "length": 1, "odd": 0.5}, {"parsed": "5!", "length": 2, "odd": "nan"},
    ]  # fmt: skip
    assert json.dumps(scored[1].logged, allow_nan=False) and session.metrics == {"accuracy": [0.25, 0.75]}
    assert [row.score for row in scored] == [0.0, 1.0] and "mine" not in scored[0].components


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda log_extra, **_: log_extra("x", [1]), "logged 1 values as x for 2 completions"),
        (lambda log_metric, **_: log_metric("x", float("nan")), "logged nan as the metric x"),
        (lambda log_metric, **_: log_metric("x", "much"), "ValueError"),
    ],
)
def test_bad_logs_are_refused_by_name(function, message):
    with pytest.raises(RecipeError, match=f"rlvr.reward_functions: mine .*{message}"):
        call(function)


def test_a_coroutine_logs_too():
    session = keywords.Session(0, 1)

    async def mine(completions, log_metric, **_):
        await asyncio.sleep(0)
        log_metric("x", 1)
        return [1.0] * len(completions)

    assert call(mine, session=session)[0].score == 1.0 and session.metrics == {"x": [1.0]}


def test_a_function_as_a_term_logs_too(tmp_path, monkeypatch):
    (tmp_path / "noting.py").write_text(
        "def f(completions, log_extra, trainer_state):\n"
        "    log_extra('n', [1, 2])\n    return [trainer_state.global_step] * 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reward = bind(
        "rlvr.reward", {"kind": "composite", "terms": ["verifier", {"kind": "function", "path": "noting:f"}]}
    ).fn
    scored = [answer(uid, 0, text) for uid, text in zip(UIDS, "45", strict=True)]
    with keywords.session(keywords.Session(7, 10)):
        reward.score(scored, PROBLEMS)
    assert [row.logged for row in scored] == [{"n": 1}, {"n": 2}] and [row.score for row in scored] == [8.0, 7.0]
