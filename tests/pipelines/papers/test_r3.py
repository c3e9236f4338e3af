"""R^3 replays for zero-variance groups alone."""

from __future__ import annotations

import torch
import toys
from method_toys import answer
from toys import columns_of

from pipelines.contract.catalogue import bind


def test_replay_only_helps_groups_without_difference():
    method = bind("rlvr.replay", {"kind": "r3", "answers": 2}).fn
    a, b = "a" * 32, "b" * 32

    def rows(uid, group, *rights, version=0):
        made = [answer(uid, group, str(i), score=float(r), correct=bool(r)) for i, r in enumerate(rights)]
        for one in made:
            one.version = version
        return made

    first = rows(a, 0, 1, 0, 1) + rows(b, 1, 0, 0, 0)
    assert method.on_rollouts(first) == first, "nothing is stored yet"
    second = (
        rows(a, 0, 0, 0, version=1)
        + rows(b, 1, 0, 0, version=1)
        + rows(a, 2, 1, 0, version=1)
        + rows(a, 3, 1, 1, version=1)
    )
    mixed = method.on_rollouts(second)
    by_group = {g: [r for r in mixed if r.group == g] for g in range(4)}
    assert [len(by_group[g]) for g in range(4)] == [4, 2, 2, 3]
    assert all(r.correct and r.uid == a and r.version == 0 for r in by_group[0][2:])
    assert not by_group[3][2].correct and by_group[3][2].version == 0
    batch = toys.batch()
    batch.replayed = torch.arange(12) >= 10
    (own,) = method.updates(columns_of(batch) | {"advantage": torch.ones(12, 9)}, torch.Generator())
    assert own.columns["advantage"][:, 0].tolist() == [1.0] * 10 + [0.5] * 2
    again = bind("rlvr.replay", {"kind": "r3", "answers": 2}).fn
    again.load_state_dict(method.state_dict())
    assert again.on_rollouts(rows(a, 0, 0, 0, version=2)) == method.on_rollouts(rows(a, 0, 0, 0, version=2))
