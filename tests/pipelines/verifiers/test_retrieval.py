"""A query by the rank it finds the gold passage at: the sheet's values and its laws."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.verifiers import retrieval

pytest.importorskip("bm25s")


@pytest.fixture
def corpus(tmp_path):
    """120 passages about tea, in this order of rank for "tea", and two of ice."""
    file = tmp_path / "corpus.jsonl"
    rows = [{"id": f"tea{i:03}", "text": "tea" + " filler" * i} for i in range(1, 121)]
    rows += [{"id": "ice", "text": "ice 7"}, {"id": "snow", "text": "snow"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def wrapped(query):
    return f"<think>it is</think>\n<rewrite>{query}</rewrite>"


def verdict(corpus, completion, answer, **info):
    return verifiers.verify("retrieval", completion, answer, {"corpus": corpus, **info})


def test_the_sheet_s_values(corpus):
    ranks = {1: 2.0, 2: 1.888889, 10: 1.0, 11: 0.988889, 55: 0.5, 100: 0.0, 101: 0.0}
    for rank, expected in ranks.items():
        own = verdict(corpus, wrapped("tea"), f"tea{rank:03}")
        assert own.score == pytest.approx(expected, abs=1e-6)
        assert own.correct is (rank <= 10)
        assert own.components["mrr"] == pytest.approx(1 / rank if rank <= 100 else 0.0)
    assert verdict(corpus, wrapped("tea"), "ice").score == 0.0
    malformed = verdict(corpus, "<rewrite>tea</rewrite>", "tea001")
    assert (malformed.score, malformed.status) == (-0.1, "unparsable")


@given(st.integers(1, 300), st.integers(1, 300))
def test_laws_of_the_reward(a, b):
    low, high = sorted((retrieval.reward(a), retrieval.reward(b)))
    assert 0 <= low <= high <= 2
    if a < b <= 100:
        assert retrieval.reward(a) > retrieval.reward(b)


@given(st.text(alphabet="<>/thinkrew \n", max_size=60))
def test_values_are_the_formula_s_or_the_penalty(text):
    own = verifiers.verify("retrieval", text, "bela museum opened", {"corpus": "generated:places"})
    assert own.score == retrieval.MALFORMED or 0 <= own.score <= 2
    assert (own.score == retrieval.MALFORMED) is (own.status == "unparsable")


@pytest.mark.parametrize(
    "completion",
    [
        "", "tea", "<think></think><rewrite>tea</rewrite>", wrapped("tea") + " thanks", "so " + wrapped("tea"),
        wrapped("tea</rewrite>\n<rewrite>ice"), wrapped("<think>tea</think>"), "<think>x</think>\n<rewrite>tea", wrapped("tea " * 1025),
    ],
)  # fmt: skip
def test_what_is_malformed(corpus, completion):
    assert verdict(corpus, completion, "tea001").score == -0.1


def test_a_plain_query_is_what_follows_the_reasoning(corpus):
    assert verdict(corpus, "<think>ice?</think>\ntea", "tea001", form="plain").score == 2.0
    assert verdict(corpus, "tea\nice", "tea001", form="plain").score == -0.1
    assert verdict(corpus, "<think>all of it</think>", "tea001", form="plain").score == -0.1


def test_several_gold_passages_and_settings(corpus):
    assert verdict(corpus, wrapped("tea"), '["tea050", "tea003"]').score == pytest.approx(16 / 9)
    assert verdict(corpus, wrapped("tea"), "tea003", within=2).status == "incorrect"
    assert verdict(corpus, wrapped("tea"), "tea012", top=11, within=1).score == 0.0
    assert verdict(corpus, wrapped("TEA, please!"), "tea001").score == 2.0
    assert verdict(corpus, wrapped(""), "tea001").score == 0.0


@pytest.mark.parametrize(
    ("answer", "info"),
    [
        ("none", {}), ("[]", {}), ("[1]", {}), ("[", {}), ("", {}), ("tea001", {"corpus": "none.txt"}), ("tea001", {"corpus": None}),
        ("tea001", {"form": "x"}), ("tea001", {"top": 101}), ("tea001", {"top": 5}), ("tea001", {"within": True}),
    ],
)  # fmt: skip
def test_a_retriever_or_row_that_fails_is_unscored(corpus, answer, info):
    for completion in (wrapped("tea"), "malformed"):
        own = verifiers.verify("retrieval", completion, answer, {"corpus": corpus, **info})
        assert own.score is None and own.status == "verifier_failed"


def test_a_gold_completion_finds_the_passage(corpus):
    for form in ("tags", "plain"):
        text = verifiers.gold("retrieval", "ice", {"corpus": corpus, "form": form})
        assert verdict(corpus, text, "ice", form=form, within=1).correct
    assert verifiers.extract_answer("retrieval", wrapped(" tea  now ")) == "tea now"
    assert verifiers.extract_answer("retrieval", "tea") == "tea"
