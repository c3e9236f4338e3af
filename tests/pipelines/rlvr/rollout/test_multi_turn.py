"""Episodes of several turns: groups without a success are played again (ActiveVLN)."""

from __future__ import annotations

import scripted

from pipelines.contract.catalogue import bind


def test_a_group_without_a_success_is_played_again():
    calls = []

    def script(prefix, number):
        """The first group arrives at once; of the second, one row does so in its second attempt."""
        calls.append(number)
        lost = "lost" in prefix and len(calls) <= 4
        return "left" if lost or ("lost" in prefix and number) else "right"

    near = {"environment": "frozen_lake", "map": ["SG", "FF"]}
    requests = [scripted.request("near", 2, group=5, **near), scripted.request("lost", 2, group=6, **near)]
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 1, "regenerate": 2}).fn
    rows = rollout.run(requests, scripted.context(script))
    assert [(row.group, row.correct, row.components["attempts"]) for row in rows] == [
        (5, True, 1.0), (5, True, 1.0), (6, True, 2.0), (6, False, 2.0),
    ]  # fmt: skip
    assert len(calls) == 6, "the group that succeeded is not played again, nor is the other once it has"
    hopeless = rollout.run([requests[1]], scripted.context(lambda prefix, number: "left"))
    assert [row.components["attempts"] for row in hopeless] == [3.0, 3.0]
    plain = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 1}).fn.run(requests, scripted.context(script))
    assert all("attempts" not in row.components for row in plain)
