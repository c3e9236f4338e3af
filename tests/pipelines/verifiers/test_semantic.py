"""Texts by an encoder: the sheet's values, a real tiny model on disk, windows, the gate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.verifiers import semantic
from pipelines.verifiers._encoder import MOST_WINDOWS, TINY, encoder

INFO = {"encoder": TINY}


def verdict(completion, answer="the cat sat", **info):
    return verifiers.verify("semantic", completion, answer, INFO | info)


def test_the_sheet_s_values():
    reference, texts = torch.tensor([0.1, 0.8, 0.4]), torch.tensor([[0.2, 0.9, 0.1], [-0.5, 0.1, 0.2]])
    near = torch.nn.functional.cosine_similarity(texts, reference[None]).tolist()
    assert near == pytest.approx([0.934551, 0.223146], abs=1e-6)
    values = [semantic.rescaled(value, 0.3) for value in near]
    assert values == pytest.approx([0.906501, 0.0], abs=1e-6)
    assert 0.2 + 0.3 + 0.5 * values[0] == pytest.approx(0.953251, abs=1e-6)


@given(st.floats(-1, 1), st.floats(-1, 0.99))
def test_rescaled_is_a_share_that_never_falls(value, floor):
    assert 0 <= semantic.rescaled(value, floor) <= 1 + 1e-12
    assert semantic.rescaled(1.0, floor) == pytest.approx(1.0)


def test_the_same_text_is_nearest_and_the_cosine_is_symmetric():
    assert verdict("the cat sat").score == pytest.approx(1.0, abs=1e-5)
    assert verdict("the cat sat").correct
    one, other = verdict("9!").components["cosine"], verdict("the cat sat", "9!").components["cosine"]
    assert one == pytest.approx(other, abs=1e-6) and one < 0.95
    assert verdict("9!", floor=0.9).score == 0.0
    assert verdict("<think>9!</think>the cat sat").correct, "what follows the reasoning is read"


def test_a_long_text_is_read_in_windows_to_its_end():
    model = encoder(TINY)
    text = "abc" * model.window
    near = model.embed([text, text + "!" * 50, text])
    assert torch.equal(near[0], near[2]) and float(near[0] @ near[1]) < 0.999
    one, pieces = model.embed(["ab" * 31 + "cd" * 31])[0], model._sums([[*range(36, 38)] * 31])
    assert one.norm() == pytest.approx(1.0) and pieces.shape == (1, 32)
    assert verdict("a" * (model.window * MOST_WINDOWS + 1)).status == "unparsable"
    assert verdict("a", "b" * (model.window * MOST_WINDOWS + 1)).status == "verifier_failed"


def test_padding_changes_nothing():
    model = encoder(TINY)
    alone, beside = model.embed(["cat"])[0], model.embed(["cat", "a much longer text than that"])[0]
    assert torch.allclose(alone, beside, atol=1e-6)


def test_a_gate_closes_on_a_wrong_answer():
    gate = {"verifier": "number", "answer": "7"}
    opened, closed = verdict("so 7", "so 7", gate=gate), verdict("so 8", "so 7", gate=gate)
    assert opened.correct and opened.components["gate"] == 1
    assert (closed.score, closed.status, closed.components["gate"]) == (0.0, "incorrect", 0.0)


@pytest.mark.parametrize(
    "info", [{"encoder": 3}, {"floor": 1.0}, {"threshold": "x"}, {"gate": {"verifier": "semantic"}}]
)
def test_a_row_that_cannot_be_read_is_unscored(info):
    assert verdict("a", **info).score is None


def test_an_encoder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"info\.encoder: no encoder at .*nothing"):
        verdict("a", encoder=str(tmp_path / "nothing"))


def test_an_encoder_from_a_folder_gives_the_same(tmp_path):
    model = encoder(TINY)
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    assert verdict("9!", encoder=str(tmp_path)).components == verdict("9!").components
