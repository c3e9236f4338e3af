"""Parts of a stage's questions, answered by several processes in the order in which they were asked."""

from __future__ import annotations

import gc
import weakref
from typing import ClassVar

import pytest
from rank_threads import in_ranks

from pipelines.engine.ranks import Ranks


class Loaded:
    """Counts what it answered, as a model of a process does."""

    there: ClassVar[weakref.WeakSet[Loaded]] = weakref.WeakSet()

    def __init__(self, name: str, *, most: int = 0) -> None:
        self.there.add(self)
        self.name, self.answered = name, 0
        assert not most or len(self.there) <= most


def answer(loaded, parts):
    for part in parts:
        loaded.answered += 1
        yield f"{loaded.name}{part}", loaded.answered


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("parts", [0, 1, 4, 9])
def test_results_come_in_order_and_each_process_does_its_share(count, parts):
    told = []

    def first(ranks):
        return ranks.divide(ranks.load(Loaded, "a"), answer, list(range(parts)), told.append)

    results = in_ranks(count, first)
    assert [text for text, _ in results] == [f"a{part}" for part in range(parts)]
    assert max((number for _, number in results), default=0) == -(-parts // count), "no process does more"
    assert told == [min(parts, done * count) for done in range(1, -(-parts // count) + 1)]


def test_the_next_model_takes_the_place_of_the_last():
    def first(ranks):
        answers = []
        for name in ("a", "b", "c"):
            loaded = ranks.load(Loaded, name, most=3)
            answers += ranks.divide(loaded, answer, [1, 2, 3])
            del loaded
        return answers

    gc.collect()  # models of other tests
    assert [text for text, _ in in_ranks(3, first)] == [f"{name}{part}" for name in "abc" for part in (1, 2, 3)]


def test_an_error_of_a_process_is_that_error():
    def first(ranks):
        return ranks.divide(ranks.load(Loaded, "a"), divided, [1, 0])

    with pytest.raises(ZeroDivisionError):
        in_ranks(2, first)


def divided(loaded, parts):
    return [1 / part for part in parts]


def test_alone_nothing_is_handed_over():
    ranks = Ranks()
    unpicklable = (lambda: 3,)
    assert ranks.first and ranks.load(lambda: unpicklable) is unpicklable
    assert ranks.divide(None, lambda loaded, parts: [part() for part in parts], unpicklable) == [3]
