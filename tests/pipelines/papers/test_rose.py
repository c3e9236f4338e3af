"""ROSE's branches, from a script and a scorer that says where to branch."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from scripted import context, ids, request, show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role, Stop
from pipelines.papers.rose import spread


class Says:
    """The metric of a token is what a table says of its character."""

    def __init__(self, table):
        self.table, self.asked = table, []

    def tokenizer(self, model="policy"):
        return tokenizer()

    def statistics(self, passages, statistics, *, model="policy"):
        self.asked += [(show(p.context), show(p.text)) for p in passages]
        assert statistics.width == 1
        return [torch.tensor([[self.table.get(show([t]), 0.0)] for t in p.text]).view(-1, 1) for p in passages]


def run(texts, table, requests, *, max_tokens=8, entropy=False, **settings):
    """Rollouts whose answers come from a list, and never start at the prompt after the first."""
    said = itertools.chain(texts)
    part = bind("rlvr.rollout", {"kind": "rose", "epsilon": 0.0, **settings}).fn
    ctx = context(lambda prefix, n: next(said), max_tokens=max_tokens, entropy=entropy)
    ctx = dataclasses.replace(ctx, scorer=Says(table))
    return part.run(requests, ctx), ctx


def test_rows_branch_at_the_largest_metric_and_share_nodes():
    """The first branch is before "e", the second before "y" of the second row; a place is not taken twice."""
    rows, ctx = run(["abcdefg", "xyz", "uv"], {"e": 3.0, "x": 2.5, "y": 2.0, "z": 2.0, "c": 1.0}, [request("pq", 3)])
    assert [show(row.tokens) for row in rows] == ["pqabcdefg", "pqabcdxyz", "pqabcdxuv"]
    assert [call.prefixes for call in ctx.sampler.calls] == [["pq"], ["pqabcd"], ["pqabcdx"]]
    assert ctx.scorer.asked == [("pq", "abcdefg"), ("pqabcd", "xyz")], "nobody branches off the last one"
    nodes = [row.node for row in rows]
    assert nodes[0][:2] == [-1, -1] and len({tuple(n[2:6]) for n in nodes}) == 1 and len(set(nodes[0][2:6])) == 1
    assert nodes[1][6] == nodes[2][6] != nodes[0][6], "x is shared by the second and the third"
    assert nodes[1][7] not in nodes[0] + nodes[2] and nodes[2][7] not in nodes[0] + nodes[1]
    for row in rows:
        assert len(row.tokens) == len(row.role) == len(row.logp_old) == len(row.node)
        assert [r == Role.POLICY for r in row.role] == [n >= 0 for n in row.node]
    assert rows[1].logp_old[2:8] == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.1, -0.2])


def test_the_first_token_is_no_place_and_without_one_the_prompt_is():
    rows, ctx = run(["a", "b", "cd"], {"a": 5.0}, [request("p", 3)], max_tokens=1)
    assert [call.prefixes for call in ctx.sampler.calls] == [["p"], ["p"], ["p"]]
    assert len({row.node[1] for row in rows}) == 3 and [row.stop for row in rows] == [Stop.LENGTH] * 3


def test_nothing_is_longer_than_the_limit():
    rows, _ = run(["abcdef", "uvwxyz"], {"d": 1.0}, [request("p", 2)], max_tokens=6, entropy=True)
    assert [show(row.tokens) for row in rows] == ["pabcdef", "pabcuvw"]
    assert [row.stop for row in rows] == [Stop.LENGTH] * 2
    assert rows[1].entropy_old == [0.0, 0.25, 0.5, 0.75, 0.25, 0.5, 0.75]
    rows, _ = run(["abcd", "uv"], {"d": 1.0}, [request("p", 2)], max_tokens=6)
    assert rows[1].stop == Stop.END and show(rows[1].tokens) == "pabcuv"


def test_requests_run_side_by_side_with_their_own_counts():
    rows, ctx = run(["ab", "cd", "x", "e"], {"b": 1.0, "d": 1.0}, [request("p", 1), request("q", 3, group=1)])
    assert [len(call.prefixes) for call in ctx.sampler.calls] == [2, 1, 1]
    assert [row.group for row in rows] == [0, 1, 1, 1]
    assert show(rows[2].tokens) == "qcx"


def test_with_epsilon_one_all_are_independent_and_nothing_is_scored():
    rows, ctx = run(["ab", "cd", "ef"], {"b": 9.0}, [request("p", 3)], epsilon=1.0)
    assert [show(row.tokens) for row in rows] == ["pab", "pcd", "pef"] and ctx.scorer.asked == []
    assert len({n for row in rows for n in row.node if n >= 0}) == 3


def test_an_answer_that_says_nothing_is_an_error():
    rows, _ = run(["", "ab"], {}, [request("p", 2, hint="h")])
    assert rows[0].stop == Stop.ERROR and show(rows[1].tokens) == "phab"
    assert rows[1].role == [int(Role.PROMPT), int(Role.HINT), *[int(Role.POLICY)] * 3]


@pytest.mark.parametrize(
    ("cosine", "ours", "released"), [(1.0, 0.0, -0.576), (0.6, 0.2304, -0.3456), (0.0, 0.576, 0.0)]
)
def test_the_sheet_s_metric(cosine, ours, released):
    """At an entropy of 1.2; that of probabilities 0.6 and 0.4 is 0.673."""
    table = torch.tensor([[1.0, 0.0], [cosine, (1 - cosine**2) ** 0.5], [5.0, 5.0]]) * torch.tensor(
        [[3.0], [1.0], [1.0]]
    )
    logits = torch.tensor([[0.6, 0.4, 1e-30]]).log()
    scale = 1.2 / 0.6730117
    assert float(spread(logits, table, 2)) * scale == pytest.approx(ours, abs=1e-5)
    assert float(spread(logits, table, 2, True)) * scale == pytest.approx(released, abs=1e-5)


@pytest.mark.parametrize("top", [2, 4, 9])
def test_the_metric_against_a_loop(top):
    logits, table = torch.randn(3, 6), torch.randn(6, 4)
    for row, made in zip(logits, spread(logits, table, top), strict=True):
        p = row.softmax(0)
        best = p.argsort(descending=True)[:top].tolist()
        entropy = -sum(float(p[i] * p[i].log()) for i in best)
        pairs = [(i, j) for i in best for j in best if i != j]
        cosine = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=2)
        assert float(made) == pytest.approx(
            entropy * sum(float(p[i] * p[j] * (1 - cosine[i, j])) for i, j in pairs), abs=1e-5
        )


def test_statistics_are_those_of_the_settings():
    logits, table = torch.randn(3, 30), torch.randn(30, 4)
    tokens = torch.tensor(ids("abc"))
    for metric in ("spread", "released"):
        part = bind("rlvr.rollout", {"kind": "rose", "top": 5, "metric": metric}).fn
        torch.testing.assert_close(
            part.statistics.of(logits, tokens, table)[:, 0], spread(logits, table, 5, metric == "released")
        )
