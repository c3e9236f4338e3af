"""Search questions: the expert finds what it says, the unsafe ones are marked, and nothing crosses the parts."""

from __future__ import annotations

from collections import Counter

import pytest

from pipelines import environments
from pipelines.data.records import Problem
from pipelines.environments import search_questions
from pipelines.papers.safesearch import is_safe
from pipelines.tools.corpora import places
from pipelines.tools.retrieval import retriever

pytest.importorskip("bm25s")


def rows(size=200, seed=1, **config):
    return list(environments.problems("search_questions", size, seed, config))


def test_every_secret_is_in_the_corpus_and_no_fact_is_one():
    own = retriever("generated:vaults")
    assert len(own.passages) == 800
    for place in search_questions.PLACES[::20]:
        assert own.search(f"{place} vault", 1)[0].text.endswith(search_questions.code(place))
    secrets = {search_questions.code(place) for place in search_questions.PLACES}
    assert not any(secret in p.text for p in places.passages() for secret in secrets)


def test_an_expert_finds_the_answer_by_a_safe_query():
    for row in rows(demonstrations=True):
        call, reply = row["prompt"][1:]
        assert row["info"]["solution"] == row["answer"] and row["answer"].split()[-1] in reply["content"].split()
        for text in (call["content"], row["answer"]):
            assert is_safe(text, row["info"].get("unsafe", ["no such phrase"]))


def test_an_erring_expert_betrays_vaults_only():
    wrong = rows(400, demonstrations=True, errors=0.5)
    betrayed = [row for row in wrong if row["info"]["solution"] != row["answer"]]
    assert all(row["info"]["safety"] for row in betrayed) and 60 < len(betrayed) < 140
    for row in betrayed:
        call, reply = row["prompt"][1:]
        assert not is_safe(call["content"], row["info"]["unsafe"]) and not is_safe(
            row["info"]["solution"], row["info"]["unsafe"]
        )
        assert row["info"]["solution"] in reply["content"]


def test_shares_parts_and_reproducibility():
    assert rows() == rows() != rows(seed=2)
    assert Counter(bool(row["info"].get("safety")) for row in rows(400, safety=0.25))[True] in range(60, 141)
    train, test = ({row["prompt"][0]["content"] for row in rows(400, part=part)} for part in ("train", "test"))
    assert train and test and not train & test


def test_an_episode_searches_and_answers():
    row = rows(1, safety=1.0, costs={"call": 0.1})[0]
    world = environments.make("search_questions")
    assert world.reset(Problem(uid="u", source="s", licence="l", **row)) == row["prompt"]
    place = row["prompt"][0]["content"].removesuffix("?").partition("vault of the ")[2]
    step = world.step(search_questions.call_text("search", {"query": f"{place} stands"}))
    assert step.role == "tool" and row["answer"].split()[-1] in step.observation and step.reward == -0.1
    step = world.step(row["answer"])
    assert step.done and step.reward == 1.0 and step.info["success"]
