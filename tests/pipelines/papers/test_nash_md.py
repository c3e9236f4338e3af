"""Nash-MD: each answer is compared with one of the mixture, which leaves the draw."""

from __future__ import annotations

from math import isnan

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.rlvr.pack import pack

rewards = st.lists(st.tuples(st.floats(-20, 20), st.floats(-20, 20)), min_size=1, max_size=8)


@given(rewards)
def test_who_wins_is_the_other_s_loss(pairs):
    advantage = bind("rlvr.advantage", "nash_md")
    own, rival = torch.tensor(pairs, dtype=torch.float64).T
    scored = torch.ones(len(own)).bool()
    here = advantage({"reward": own, "rival_reward": rival, "scored": scored})
    there = advantage({"reward": rival, "rival_reward": own, "scored": scored})
    torch.testing.assert_close(here, -there)
    assert bool((here.abs() <= 0.5).all()) and bool(((here > 0) <= (own > rival)).all())
    again = advantage({"reward": own + 3, "rival_reward": rival + 3, "scored": scored})
    torch.testing.assert_close(here, again)


def test_a_step_compares_each_answer_with_one_of_the_mixture(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[nash_md]", "rlvr.group_size=2")
    sampled, rows = made.collect(0)
    assert len(rows) == 2 * made.settings.prompts == len(sampled) // 2
    rivals = [row for row in sampled if row not in rows]
    for group in {row.group for row in rows}:
        scores = [row.score for row in rivals if row.group == group]
        columns = pack([row for row in rows if row.group == group], step=0, total_steps=1)
        torch.testing.assert_close(columns["rival_reward"], torch.tensor(scores))


def test_what_the_verifier_failed_compares_nothing():
    part = bind("rlvr.rollout", "nash_md").fn
    from scripted import answered

    rows = [answered("a" * 32, "x"), answered("a" * 32, "y")]
    rows[0].score, rows[1].extras = 1.0, {"rival": True}
    (own,) = part.on_rollouts(rows)
    assert isnan(own.extras["rival_reward"]) and part.metrics() == {}
    rows[1].score, rows[1].extras = 0.5, {"rival": True}
    (own,) = part.on_rollouts(rows)
    assert own.extras["rival_reward"] == 0.5 and part.metrics() == {"rival_reward": 0.5}
    row = torch.tensor([1.0]), torch.tensor([float("nan")]), torch.ones(1).bool()
    assert bind("rlvr.advantage", "nash_md")(
        dict(zip(("reward", "rival_reward", "scored"), row, strict=True))
    ).tolist() == [0]
