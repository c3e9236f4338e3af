"""The listener: what it is asked, and what it pays."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from method_toys import answer
from scripted import show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.kind import KIND

UID = "a" * 32
PROBLEMS = {
    UID: Problem(
        uid=UID, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="s", licence="l"
    )
}


class Heard:
    """Notes what it is asked; likes a gold answer better the longer the reasoning is."""

    def __init__(self):
        self.asked, self.models = [], []

    def load(self, model):
        self.models.append(model)

    def tokenizer(self, model="policy"):
        self.models.append(model)
        return tokenizer()

    def log_probs(self, passages, *, model="policy"):
        self.models.append(model)
        self.asked += [(show(p.context), show(p.text)) for p in passages]
        return [torch.tensor([-1.0 / len(p.context)] * len(p.text)) for p in passages]


def listening(**settings):
    reward, heard = bind("rlvr.reward", {"kind": "listener", **settings}).fn, Heard()
    reward.connect(heard)
    return reward, heard


def test_it_hears_the_reasoning_and_is_asked_for_the_gold_answer():
    reward, heard = listening(model="folder", before="So: ")
    rows = [answer(UID, 0, "two and two</think> 5"), answer(UID, 0, "4")]
    reward.score(rows, PROBLEMS)
    assert [text for _, text in heard.asked] == ["4", "4"]
    assert heard.asked[0][0].endswith("two and twoSo: ") and heard.asked[1][0].endswith("4So: ")
    assert "5" not in heard.asked[0][0] and "2 + 2?" in heard.asked[0][0]
    assert set(heard.models) == {"folder"}
    assert 0 < rows[1].score < rows[0].score < 1
    assert [row.correct for row in rows] == [False, True], "the verdict stays the verifier's"


def test_the_value_is_the_geometric_mean_probability_of_the_answer_s_tokens():
    reward, heard = listening()
    heard.log_probs = lambda passages, model: [torch.tensor([-0.5, -1.5]), torch.full((2,), torch.nan), torch.zeros(0)]
    rows = [answer(UID, 0, text) for text in ("a", "b", "c")]
    reward.score(rows, PROBLEMS)
    assert rows[0].score == pytest.approx(math.exp(-1.0))
    assert rows[1].score is None and rows[2].score is None, "what cannot be scored is unscored, not 0"


def test_a_row_that_failed_is_not_asked_about():
    reward, heard = listening()
    row = answer(UID, 0, "x")
    row.stop = Stop.ERROR
    reward.score([row], PROBLEMS)
    assert heard.asked == [] and row.score is None


def test_its_model_is_in_the_stage_s_key(tmp_path):
    """As a reward, or as a term of one; the starting model is in the key already."""

    def models(spec):
        recipe = read_recipe(toys.recipe(tmp_path), [f"rlvr.reward={spec}"])
        (node,) = [node for node in recipe.nodes() if node.name == "rlvr"]
        return {label: files.path for label, files in KIND.reads(node).models.items() if label != "model"}

    assert models("{kind: listener, model: ./folder}") == {"reward.model": "./folder"}
    assert models("[verifier, {kind: listener, model: ./folder, weight: 0.5}]") == {"reward.terms.1.model": "./folder"}
    assert models("[verifier, listener]") == {}
