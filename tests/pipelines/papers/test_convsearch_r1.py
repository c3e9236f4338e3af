"""Conversational search: the corpus, conversations whose last question needs the others, and a rewriter who errs."""

from __future__ import annotations

from collections import Counter

import pytest
import scripted

from pipelines import environments, verifiers
from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.episode import play
from pipelines.contract.rollout import RolloutRequest
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data.records import Problem
from pipelines.tools.corpora import places
from pipelines.tools.retrieval import retriever

pytest.importorskip("bm25s")


def rows(size=200, seed=1, **config):
    return list(environments.problems("conv_search", size, seed, config))


def verdict(row, text):
    return verifiers.verify("retrieval", text, row["answer"], row["info"])


def test_each_passage_tells_one_fact_of_one_place():
    passages = list(places.passages())
    assert len({p.id for p in passages}) == len({p.text for p in passages}) == len(passages) == 640
    assert all(word in p.text for p in passages for word in p.id.split()[:2])
    own = retriever("generated:places")
    assert all(own.rank(p.id, [p.id], 1) == 1 for p in passages), "the ideal query is the id's words"
    questions = {w for f in places.FACTS for q in f.questions for w in q.replace("?", "").split()}
    assert not questions & {f.key for f in places.FACTS}


def test_an_unerring_rewriter_finds_every_passage_first():
    for row in rows(demonstrations=True):
        assert verdict(row, row["info"]["solution"]).score == 2.0
        *_, answer, last = [message["content"] for message in row["prompt"]]
        assert ("the first" in last) is row["info"]["referent"] and answer
        assert not set(row["answer"].split()) & set(last.split()), "the question alone names neither place nor key word"


def test_an_erring_rewriter_is_found_out_but_keeps_the_form():
    wrong = rows(600, demonstrations=True, errors=0.5)
    verdicts = Counter(verdict(row, row["info"]["solution"]).status for row in wrong)
    assert set(verdicts) == {"correct", "incorrect"} and 0.4 < verdicts["incorrect"] / 600 < 0.6


def test_rows_are_reproducible_and_no_gold_passage_of_the_test_part_is_trained():
    assert rows() == rows() != rows(seed=2)
    train, test = ({row["answer"] for row in rows(500, part=part)} for part in ("train", "test"))
    assert train and test and not train & test
    assert Counter(row["info"]["referent"] for row in rows(400))[True] in range(150, 251)


def test_an_episode_is_one_rewrite():
    row = rows(1)[0]
    problem = Problem(uid="u", source="s", licence="l", **row)
    world = environments.make("conv_search")
    assert world.reset(problem) == row["prompt"]
    step = world.step(verifiers.gold("retrieval", row["answer"], row["info"]))
    assert step.done and step.reward == 2.0 and step.info["success"]
    twin = environments.make("conv_search")
    twin.load_state_dict(world.state_dict())
    assert twin.state_key() == world.state_key()
    world.reset(problem)
    step = world.step("who knows")
    assert step.done and step.reward == -0.1 and not step.info["success"]


def test_an_episode_s_reasoning_reaches_the_verifier():
    row = rows(1, demonstrations=True)[0]
    request = RolloutRequest(Problem(uid="u", source="s", licence="l", **row), scripted.ids("q"), 0, 1, [])
    context = scripted.context(lambda prefix, number: row["info"]["solution"], max_tokens=120)
    [played] = play([request], context, TurnBudget(1))
    assert played.score == 2.0 and played.correct and "<think>" in played.text


def test_another_corpus_and_settings_that_it_refuses(tmp_path):
    file = tmp_path / "passages.txt"
    file.write_text("tea\n")
    assert rows(1, corpus=str(file))[0]["info"]["corpus"] == str(file)
    with pytest.raises(DataError, match="no corpus"):
        rows(1, corpus=str(tmp_path / "none"))
    with pytest.raises(RecipeError, match="refuses its config"):
        rows(1, size_of="x")
