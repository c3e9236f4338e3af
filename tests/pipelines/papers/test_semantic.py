"""An encoder's reward: gate, reference, rows without a value."""

from __future__ import annotations

import pytest
import toys
from method_toys import answer

from pipelines.base.errors import DataError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.kind import KIND
from pipelines.verifiers._encoder import TINY

UID = "a" * 32


def scored(texts, info=None, **settings):
    prompt = [{"role": "user", "content": "2 + 2?"}]
    problem = Problem(
        uid=UID, prompt=prompt, answer="4", verifier="number", source="s", licence="l",
        info=info or {"why": "two and two are 4"},
    )  # fmt: skip
    reward = bind("rlvr.reward", {"kind": "semantic", "encoder": TINY, **settings}).fn
    rows = [answer(UID, 0, text) for text in texts]
    for row in rows:
        row.stop = Stop.ERROR if row.text == "error" else row.stop
    reward.score(rows, {UID: problem})
    return rows


def test_near_and_gated():
    rows = scored(["two and two are 4", "two and two are 5", "", "error"], reference="why")
    assert [row.score for row in rows] == [pytest.approx(1.0, abs=1e-5), 0.0, 0.0, None]
    assert rows[1].components["cosine"] > 0.9 and "cosine" not in rows[2].components
    assert [row.correct for row in rows[:3]] == [True, False, False]
    free = scored(["two and two are 5", ""], reference="why", gate=False)
    assert free[0].score > 0.9 and free[1].score == 0.0


def test_a_missing_or_unreadable_reference_is_named():
    with pytest.raises(DataError, match=r"reference: the problem a+ has no text in info\.because"):
        scored(["4"], reference="because")
    with pytest.raises(DataError, match="longer than"):
        scored(["4"], {"why": "x" * 5000}, reference="why")


def test_the_encoder_is_in_the_stage_s_key(tmp_path):
    path = toys.recipe(tmp_path, rlvr={"reward": ["verifier", {"kind": "semantic", "encoder": str(tmp_path)}]})
    recipe = read_recipe(path)
    node = next(node for node in recipe.nodes() if node.kind is KIND)
    places = {files.place for files in KIND.reads(node).models.values()}
    assert ("rlvr", "reward", "terms", 1, "encoder") in places
