"""Ranking by BM25: against the formula written out, ties by id, corpora that cannot be read."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.tools.passage import Passage
from pipelines.tools.retrieval import Retriever, retriever

pytest.importorskip("bm25s")
words = st.lists(st.sampled_from(["red", "blue", "tea", "ice", "7", "x"]), max_size=6).map(" ".join)
corpora = st.lists(words, min_size=1, max_size=12).filter(lambda texts: any(texts))


def bm25(texts, query):
    """Lucene's BM25, written out."""
    documents = [text.split() for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        total = 0.0
        for word in query.split():
            holding = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            often = document.count(word)
            total += idf * often / (often + 1.5 * (0.25 + 0.75 * len(document) / mean)) if often else 0.0
        scores.append(total)
    return scores


@given(corpora, words)
def test_scores_are_bm25_s(texts, query):
    own = Retriever(Passage(f"{i:03}", text) for i, text in enumerate(texts)).scores(query)
    assert own.tolist() == pytest.approx(bm25(texts, query), abs=1e-5)


@given(corpora, words, st.randoms(use_true_random=False))
def test_the_order_of_the_file_does_not_matter_and_ties_stand_by_id(texts, query, draw):
    passages = [Passage(f"{i:03}", text) for i, text in enumerate(texts)]
    shuffled = draw.sample(passages, len(passages))
    first, second = Retriever(passages), Retriever(shuffled)
    best = first.search(query, 5)
    assert best == second.search(query, 5)
    scores = dict(zip([p.id for p in passages], first.scores(query).tolist(), strict=True))
    everything = sorted((p for p in passages if scores[p.id] > 0), key=lambda p: (-scores[p.id], p.id))
    assert best == everything[:5]
    for place, passage in enumerate(everything, 1):
        assert first.rank(query, [passage.id], 100) == place
        assert first.rank(query, [passage.id], place - 1) is None
    for passage in passages:
        assert scores[passage.id] > 0 or first.rank(query, [passage.id], 100) is None


def test_the_best_of_several_gold_passages_counts():
    own = Retriever([Passage("a", "tea"), Passage("b", "tea tea"), Passage("c", "ice")])
    alone = [own.rank("tea", [each], 100) for each in "abc"]
    assert sorted(alone[:2]) == [1, 2] and alone[2] is None
    assert own.rank("tea", ["c", "a"], 100) == alone[0] and own.rank("tea", ["a", "b"], 100) == 1
    with pytest.raises(DataError, match="no document 'z'"):
        own.rank("tea", ["a", "z"], 100)


def test_a_file_is_read_again_when_it_changes(tmp_path):
    file = tmp_path / "docs.jsonl"
    file.write_text(
        json.dumps({"id": "p1", "title": "Tea", "text": "leaves\u2028and water"}, ensure_ascii=False) + "\n\n"
    )
    assert retriever(str(file)).search("WATER", 3) == [Passage("p1", "Tea: leaves\u2028and water")]
    assert retriever(str(file)) is retriever(str(file))
    file.write_text('{"text": "one 7"}\n{"text": "two 7 7 7"}\n')
    assert [p.id for p in retriever(str(file)).search("7", 3)] == ["2", "1"]
    plain = tmp_path / "docs.txt"
    plain.write_text("\n".join(f"line {i}" for i in range(12)))
    assert [p.id for p in retriever(str(plain)).search("line", 3)] == ["01", "02", "03"], "as numbers sort"


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("a.jsonl", '{"text": "x"}\n{"body": 1}\n', "a.jsonl, document 2: not an object with `text`"),
        ("b.jsonl", '{"id": 1, "text": "x"}\n{"id": "1", "text": "y"}\n', "two documents have the id '1'"),
        ("c.txt", " \n\n", "holds no document"),
        ("d.txt", "... ! ?\n", "no document holds a word"),
        ("e.jsonl", "[" * 3000, "document 1"),
    ],
)
def test_a_corpus_that_is_none_is_refused(tmp_path, name, body, says):
    (tmp_path / name).write_text(body)
    with pytest.raises(DataError, match=re.escape(says)):
        retriever(str(tmp_path / name))


def test_what_is_not_there_is_refused(tmp_path):
    for lost in (str(tmp_path / "none.txt"), str(tmp_path), "\0"):
        with pytest.raises(DataError, match="no corpus at"):
            retriever(lost)
    (tmp_path / "bytes.txt").write_bytes(b"tea \xff")
    with pytest.raises(DataError, match=r"not UTF-8 \(byte 4\)"):
        retriever(str(tmp_path / "bytes.txt"))
    for name in ("conv_serch", "frozen_lake", "os"):
        with pytest.raises(RecipeError, match="no generated corpus called"):
            retriever(f"generated:{name}")


def test_a_large_corpus_is_searched_as_a_small_one():
    draw = random.Random(0)
    passages = [Passage(f"{i:05}", " ".join(draw.choices("abcdefgh", k=4))) for i in range(3000)]
    own = Retriever(passages)
    scores = own.scores("a b c")
    best = own.search("a b c", 10)
    assert [p.id for p in best] == [
        p.id for _, p in sorted(zip(-scores, passages, strict=True), key=lambda x: (x[0], x[1].id))[:10]
    ]
