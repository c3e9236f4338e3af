"""Questions in a conversation that a search engine cannot answer: they say "it" or "the first", and use other words than the corpus.

    who started the bela museum?   ada   and the kador bridge?   finn   how old is it?   ->   kador bridge opened

One turn: the completion thinks, then rewrites the last question as a query, which the verifier `retrieval` searches; it is correct where
the passage with the answer comes first. The rewriter of the demonstrations errs in a share of them (`errors`): it takes the other place,
leaves out what kind of place it is, or keeps the question's own words. `generated:places` names the corpus.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipelines.data.records import Message
from pipelines.environments import _answered
from pipelines.environments._answered import Part, belongs
from pipelines.tools.corpora.places import FACTS, PLACES, Fact, passage_id, value
from pipelines.tools.retrieval import GENERATED, retriever

__all__ = ["World", "problems"]

CORPUS = f"{GENERATED}places"
VERIFIERS = ("retrieval",)


class World(_answered.World):
    """One rewrite, one search."""

    waits = False
    reads_thinking = True  # the reasoning is part of the form that the verifier asks for


class Conversation(NamedTuple):
    """Two places of which one fact was asked, and which of them the last question is about."""

    first: str
    second: str
    fact: Fact
    opening: Fact
    of_first: bool

    @property
    def place(self) -> str:
        """What the last question is about."""
        return self.first if self.of_first else self.second

    def prompt(self, draw: random.Random) -> list[Message]:
        """The messages, the last question included."""
        asked = draw.choice(self.opening.questions).format(f"the {self.first}")
        last = draw.choice(self.fact.questions).format("the first" if self.of_first else "it")
        texts = [
            asked,
            value(self.first, self.opening),
            f"and the {self.second}?",
            value(self.second, self.opening),
            last,
        ]
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def _rewrite(talk: Conversation, prompt: list[Message], draw: random.Random, errors: float) -> str:
    """The thought and the query of a rewriter who errs in a share of its rewrites."""
    position, words = talk.place, talk.fact.key
    if draw.random() < errors:
        mistake = draw.choice(("place", "place", "kind", "words"))
        if mistake == "place":
            position = talk.second if talk.of_first else talk.first
        elif mistake == "words":
            words = " ".join(prompt[-1]["content"].rstrip("?").split()[:2])
        return _completion(position, position.split()[0] if mistake == "kind" else position, words)
    return _completion(position, position, words)


def _completion(thought: str, place: str, words: str) -> str:
    return f"<think>{thought}</think>\n<rewrite>{place} {words}</rewrite>"


def problems(
    size: int,
    seed: int,
    *,
    part: Part = "train",
    demonstrations: bool = False,
    errors: float = 0.0,
    corpus: str = CORPUS,
) -> Iterator[dict[str, Any]]:
    """Conversations; one is of the part that the place and fact of its last question fall into.

    Args:
        size: rows.
        seed: of the conversations.
        part: `train` or `test`.
        demonstrations: with a rewriter's completion as the solution, for SFT.
        errors: share of its rewrites that go wrong somewhere.
        corpus: what is searched: the generated places, or a file that holds passages of the same ids.

    Raises:
        DataError: there is no such corpus, or it lacks a passage.
        RecipeError: the library for BM25 is not installed.
    """
    draw = random.Random(f"conversational search {seed}")
    choices = random.Random(f"conversational search {seed} choices")
    retriever(corpus)
    yielded = 0
    while yielded < size:
        first, second = draw.sample(PLACES, 2)
        opening, fact = draw.sample(FACTS, 2)
        talk = Conversation(first, second, fact, opening, draw.random() < 0.5)
        prompt = talk.prompt(draw)
        gold = passage_id(talk.place, fact)
        if not belongs(gold, part):
            continue
        info: dict[str, Any] = {"environment": "conv_search", "corpus": corpus, "within": 1, "referent": talk.of_first}
        if demonstrations:
            info["solution"] = _rewrite(talk, prompt, choices, errors)
        yield {"prompt": prompt, "answer": gold, "verifier": "retrieval", "info": info}
        yielded += 1
