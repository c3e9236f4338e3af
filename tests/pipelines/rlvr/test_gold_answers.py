"""Records without an answer are refused where the verifier pays, and allowed where something else does."""

from __future__ import annotations

import pytest

from pipelines.base.errors import DataError
from pipelines.data.records import Problem
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import gold_answers


def problem(uid, answer, verifier="exact"):
    return Problem(
        uid=uid, prompt=[{"role": "user", "content": "q"}], answer=answer, verifier=verifier, source="s", licence="MIT"
    )


ROWS = [problem("a", "4"), problem("b", "  ")]


@pytest.mark.parametrize("reward", ["verifier", ["verifier", {"kind": "function", "path": "m:f"}]])
def test_an_empty_answer_would_pay_for_silence(reward):
    with pytest.raises(DataError, match=r"rlvr\.split: 1 of 2 records of train have no answer, the first b"):
        gold_answers.require(ROWS, Rlvr.model_validate({"reward": reward}).reward, "train")


@pytest.mark.parametrize(
    "reward", [{"kind": "function", "path": "m:f"}, {"kind": "verifier", "verifier": "regex", "answer": "a+"}]
)
def test_another_reward_needs_none(reward):
    """The very rows that the verifier alone refuses."""
    gold_answers.require(ROWS, Rlvr.model_validate({"reward": reward}).reward, "train")
    with pytest.raises(DataError, match="1 of 2 records"):
        gold_answers.require(ROWS, Rlvr.model_validate({}).reward, "train")


def test_whole_records_and_other_verifiers_pass():
    reward = Rlvr.model_validate({}).reward
    whole = [problem("a", "4"), problem("b", "", "instructions")]
    gold_answers.require(whole, reward, "train")
    with pytest.raises(DataError, match=r"1 of 3 records of train have no answer, the first c"):
        gold_answers.require([*whole, problem("c", "", "exact")], reward, "train")
