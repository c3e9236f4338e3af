"""Prefixes of solutions by hand."""

from __future__ import annotations

import pytest
from scripted import context, request, show

from pipelines.contract.catalogue import bind
from pipelines.contract.streams import Streams

SOLUTION = "abcdefghij"


def build(requests, seed=0, **settings):
    part = bind("rlvr.prompting", {"kind": "prefix_rl", **settings}).fn
    ctx = context(lambda prefix, number: "", seed=seed)
    return part.build_requests(requests, ctx)


def hints(requests, **settings):
    return [show(made.hint) for made in build(requests, **settings)]


def test_a_prefix_lies_between_the_bounds_and_everywhere_there():
    """From 0.2 to 0.5 of a hundred tokens; one draw says whether, the other how long."""
    long = SOLUTION * 10
    requests = [request("p", 2, group=g, solution=long) for g in range(400)]
    built = build(requests, share=0.6, low=0.2, high=0.5)
    lengths = [len(made.hint) for made in built]
    hinted = [n for n in lengths if n]
    assert all(show(made.hint) == long[:n] for made, n in zip(built, lengths, strict=True))
    assert (min(hinted), max(hinted)) == (20, 50) and 0.5 < len(hinted) / 400 < 0.7
    assert sum(n < 35 for n in hinted) == pytest.approx(len(hinted) / 2, abs=25)
    streams = Streams(0)
    draws = [(streams.uniform(g), streams.uniform(g)) for g in range(400)]
    assert lengths == [round(100 * (0.2 + 0.3 * position)) if chance < 0.6 else 0 for chance, position in draws]
    assert [(made.group, made.rollouts, made.prompt) for made in built] == [(r.group, 2, r.prompt) for r in requests]


def test_the_last_token_is_never_shown():
    assert hints([request("p", 1, solution="ab")], share=1.0, low=0.9, high=0.95) == ["a"]
    assert hints([request("p", 1, solution="a"), request("p", 1, answer="")], share=1.0) == ["", ""]


@pytest.mark.parametrize(
    ("solution", "answer", "hint"), [("abc xyz", "abc", "ab"), ("ok   zz", "ok", "o"), ("a  b", "a", "")]
)
def test_a_prefix_that_verifies_is_shortened_until_it_does_not(solution, answer, hint):
    """The exact verifier leaves white space out, so several prefixes verify."""
    assert hints([request("p", 1, solution=solution, answer=answer)], share=1.0, low=0.6, high=0.61) == [hint]


def test_share_0_is_plain():
    assert hints([request("p", 1, solution=SOLUTION)] * 20, share=0.0) == [""] * 20
