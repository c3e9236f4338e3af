"""A tree of completions, worked by hand from a script."""

from __future__ import annotations

import pytest
from scripted import context, ids, parts, request, show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role, Stop

LETTERS = "abcdefghijklmnop"


def run(script, requests, *, max_tokens=5, entropy=False, **settings):
    part = bind("rlvr.rollout", {"kind": "tree", **settings}).fn
    ctx = context(script, max_tokens=max_tokens, entropy=entropy)
    return part.run(requests, ctx), ctx.sampler.calls


def of_node(row, node):
    return [t for t, n in zip(row.tokens, row.node, strict=True) if n == node]


def test_two_levels_by_hand():
    """Two children of two tokens each; the first ends at once, the second has two children that play to the limit of 5."""

    def script(prefix, number):
        if prefix == "ph":
            return "z" if number == 0 else "abcd"
        return "cd" if number == 0 else "efgh"

    rows, calls = run(script, [request("p", 9, group=4, hint="h")], factors=[2, 2], segment=2, entropy=True)
    assert [(c.prefixes, c.max_tokens, c.entropy) for c in calls] == [
        (["ph", "ph"], 2, True),
        (["phab", "phab"], 3, True),
    ]
    end = tokenizer().eos_token_id
    prompt = ids("ph")
    assert [row.tokens for row in rows] == [
        [*prompt, *ids("z"), end],
        [*prompt, *ids("ab"), *ids("cd"), end],
        [*prompt, *ids("ab"), *ids("efg")],
    ]
    assert [row.node for row in rows] == [[-1, -1, 0, 0], [-1, -1, 1, 1, 2, 2, 2], [-1, -1, 1, 1, 3, 3, 3]]
    assert [row.role for row in rows] == [[0, 1, 3, 3], [0, 1, 3, 3, 3, 3, 3], [0, 1, 2, 2, 3, 3, 3]]
    assert [row.logp_old for row in rows] == [
        [0, 0, -0.1, -0.2],
        [0, 0, -0.1, -0.2, -0.1, -0.2, pytest.approx(-0.3)],
        [0, 0, -0.1, -0.2, -0.1, -0.2, pytest.approx(-0.3)],
    ]
    assert rows[0].entropy_old == [0, 0, 0.25, 0.5] and rows[1].entropy_old == [0, 0, 0.25, 0.5, 0.25, 0.5, 0.75]
    assert [row.stop for row in rows] == [Stop.END, Stop.END, Stop.LENGTH]
    assert [row.text for row in rows] == ["hz", "habcd", "habefg"]
    assert {(row.group, row.max_tokens, row.version) for row in rows} == {(4, 5, 3)}
    assert rows[0].uid == f"{4:032x}"


def test_the_prompt_of_a_longer_hint_is_context():
    rows, _ = run(lambda prefix, n: "ok", [request("prompt", 1, hint="hint")], factors=[1])
    assert parts(rows[0]) == [(Role.PROMPT, "prompt"), (Role.HINT, "hint"), (Role.POLICY, "ok")]
    assert rows[0].entropy_old is None and rows[0].logp_old[:10] == [0.0] * 10


def test_three_levels_spend_the_limit_segment_by_segment():
    """A limit of 7 with segments of 3: 3, 3 and the one token that is left."""
    rows, calls = run(lambda prefix, n: LETTERS, [request("p", 1)], max_tokens=7, factors=[1, 2, 1], segment=3)
    assert [(len(c.prefixes), c.max_tokens) for c in calls] == [(1, 3), (2, 3), (2, 1)]
    assert [len(row.tokens) for row in rows] == [8, 8]
    assert [row.node[1:] for row in rows] == [[0, 0, 0, 1, 1, 1, 3], [0, 0, 0, 2, 2, 2, 4]]


def test_a_limit_below_the_depth_ends_the_tree_early():
    """Six tokens are two segments of 3; nothing is left for a third."""
    rows, calls = run(lambda prefix, n: LETTERS, [request("p", 1)], max_tokens=6, factors=[2, 1, 2], segment=3)
    assert [(len(c.prefixes), c.max_tokens) for c in calls] == [(2, 3), (2, 3)]
    assert [len(row.tokens) for row in rows] == [7, 7] and {row.stop for row in rows} == {Stop.LENGTH}


def test_a_last_segment_that_is_cut_ends_with_the_limit_and_a_silent_one_with_an_error():
    rows, calls = run(lambda prefix, n: "", [request("p", 1)], max_tokens=4, factors=[2, 2], segment=2)
    assert [row.stop for row in rows] == [Stop.ERROR] * 2 and [row.node for row in rows] == [[-1]] * 2
    assert len(calls) == 1, "it ended: nothing grows on"


def test_a_segment_that_ends_the_answer_is_a_leaf_at_any_depth():
    """Of two children of the first segment one ends at once; only the other has a third level."""
    rows, calls = run(
        lambda prefix, n: "z" if prefix == "pabc" and n == 0 else LETTERS,
        [request("p", 1)],
        factors=[1, 2, 1],
        segment=3,
        max_tokens=9,
    )
    assert [len(call.prefixes) for call in calls] == [1, 2, 1]
    assert [row.text for row in rows] == ["abcz", "abcabcabc"] and rows[0].stop == Stop.END


def test_rows_of_a_problem_stand_together_and_trees_share_no_node():
    """The second problem ends in the first round, so its leaves are known before those of the first."""
    rows, _ = run(
        lambda prefix, n: "ok" if prefix.startswith("q") else LETTERS,
        [request("p", 1, group=0), request("q", 1, group=1)],
        factors=[2, 2],
        segment=3,
        max_tokens=6,
    )
    assert [row.group for row in rows] == [0] * 4 + [1] * 2
    nodes = [{n for row in rows if row.group == g for n in row.node if n >= 0} for g in (0, 1)]
    assert not nodes[0] & nodes[1] and [len(n) for n in nodes] == [6, 2]
    for node in set.union(*nodes):
        assert len({show(of_node(row, node)) for row in rows if node in row.node}) == 1
