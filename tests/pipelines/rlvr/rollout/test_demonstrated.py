"""A demonstration beside the rollouts of each group."""

from __future__ import annotations

import pytest
from scripted import context, ids, parts, request, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role, Stop


@pytest.mark.parametrize("entropy", [False, True])
def test_the_solution_is_the_last_row_of_its_group(entropy):
    requests = [request("pp", 2, group=5, solution="abc"), request("q", 1, group=2, answer="d")]
    ctx = context(lambda prefix, number: "x", entropy=entropy)
    rows = bind("rlvr.rollout", "demonstrated").fn.run(requests, ctx)
    assert [row.group for row in rows] == [5, 5, 5, 2, 2]
    assert [parts(row)[1] for row in rows] == [
        (Role.POLICY, "x"), (Role.POLICY, "x"), (Role.TEACHER_FORCED, "abc"), (Role.POLICY, "x"), (Role.TEACHER_FORCED, "d"),
    ]  # fmt: skip
    demo = rows[2]
    assert demo.tokens == [*ids("ppabc"), tokenizer().eos_token_id] and demo.stop == Stop.END
    assert demo.role == [0, 0, 5, 5, 5, 5] and demo.logp_old == [0.0] * 6 and demo.text == "abc"
    assert demo.entropy_old == ([0.0] * 6 if entropy else None)
    assert (demo.uid, demo.version, demo.max_tokens) == (f"{5:032x}", 3, 8)


def test_a_group_without_rollouts_has_its_demonstration_alone():
    rows = bind("rlvr.rollout", "demonstrated").fn.run([request("p", 0)], context(lambda prefix, number: "x"))
    assert [parts(row)[-1] for row in rows] == [(Role.TEACHER_FORCED, "ok")]
