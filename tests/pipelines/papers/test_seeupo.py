"""SeeUPO: the sheet's values, the order of the parts, what is carried between them, and one turn as a plain step."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.method import own_update
from pipelines.papers.seeupo import CarriedRatio
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

SEEDS = st.integers(0, 300)


def test_the_sheets_values():
    """Two groups; the advantage, and the factors after the last turn and after the one before it."""
    batch = toys.batch(rows=6, groups=2)
    batch.group, batch.reward = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([1.0, 0, 0, 1, 1, 1])
    z = run_method("advantage", "seeupo", batch)
    assert z.tolist() == pytest.approx([1.825742, -0.912871, -0.912871, 0, 0, 0], abs=1e-6)
    carried, mask = CarriedRatio(z[:3, None].expand(3, 2), 0.2), torch.ones(3, 2).bool()
    carried.advantage(mask, torch.zeros(3, 2), torch.tensor([[0.1, 0.0], [-0.02, -0.02], [0.3, 0.3]]))
    assert carried.factor.tolist() == pytest.approx([1.051271, 0.980199, 1.2], abs=1e-6)
    third = carried.advantage(mask, torch.zeros(3, 2), torch.tensor([[0.1, 0.1], [-0.3, -0.3], [0.05, 0.05]]))
    assert carried.factor.tolist() == pytest.approx([1.161834, 0.8, 1.2], abs=1e-6)
    assert third[:, 1].tolist() == pytest.approx([2.121209, -0.730297, -1.095445], abs=1e-6)


@given(SEEDS)
def test_the_advantage_against_a_loop(seed):
    batch = toys.rough(seed)
    batch.reward = batch.reward * torch.randint(1, 9, batch.reward.shape, generator=torch.Generator().manual_seed(seed))
    result = run_method("advantage", {"kind": "seeupo", "bound": 1.5}, batch)
    rows = batch.scored.nonzero().squeeze(1).tolist()
    centred = {}
    for r in rows:
        group = [float(batch.reward[i]) for i in rows if batch.group[i] == batch.group[r]]
        centred[r] = float(batch.reward[r]) - (sum(group) / len(group) if len(group) > 1 else 0.0)
    spread = torch.tensor(list(centred.values()), dtype=torch.float64)
    for r in range(len(batch.group)):
        z = (centred[r] - spread.mean()) / spread.std() if r in centred else torch.tensor(0.0)
        assert result[r].item() == pytest.approx(float(z.clamp(-1.5, 1.5)), abs=1e-4)


def test_equal_rewards_teach_nothing():
    batch = toys.batch()
    batch.reward = torch.full_like(batch.reward, 0.3)
    assert not run_method("advantage", "seeupo", batch).any()


@given(SEEDS, st.floats(0, 0.9), st.integers(1, 5))
def test_the_factor_stays_in_its_bounds_and_moves_with_the_log_probs_alone(seed, clip, parts):
    draw = torch.Generator().manual_seed(seed)
    advantage, mask = torch.randn(4, 5, generator=draw), torch.rand(4, 5, generator=draw) < 0.6
    mask[0] = False
    carried = CarriedRatio(advantage, clip)
    for _ in range(parts):
        before = torch.randn(4, 5, generator=draw)
        kept = carried.factor.clone()
        same = carried.advantage(mask, before, before)
        assert torch.equal(carried.factor, kept) and torch.equal(same, advantage * kept[:, None])
        carried.advantage(mask, before, before + 30 * torch.randn(4, 5, generator=draw))
        assert ((carried.factor >= 1 - clip - 1e-6) & (carried.factor <= 1 + clip + 1e-6)).all()
    assert carried.factor[0] == 1, "a row without the turn"


@pytest.mark.parametrize("order", ["reverse", "forward", "random"])
def test_the_parts_are_the_turns_in_order(order):
    columns = toys.columns_of(toys.rough(1)) | {"advantage": torch.zeros(16, 10)}
    replay = bind("rlvr.replay", {"kind": "seeupo", "order": order}).fn
    update = own_update(replay.updates(columns, torch.Generator().manual_seed(3)))
    turns = [int(columns["turn"][mask].unique()) for mask in update.parts.masks]
    present = columns["turn"][columns["mask"] & columns["in_loss"][:, None]].unique().tolist()
    assert sorted(turns) == present and len(present) == 3
    assert turns == {"reverse": present[::-1], "forward": present}.get(order, turns)


def watched(made, step=0):
    """(columns of the part, rows, log-probs under the weights of that moment) of each optimizer update of a step."""
    learner, seen = made.learner, []
    one_update = learner._one_update

    def watch(batch, *more):
        columns = batch.update.columns
        with torch.no_grad():
            present = learner.passes.per_token(learner.passes.log_probs, columns["token"], columns["mask"])
        seen.append((columns, batch, present))
        return one_update(batch, *more)

    learner._one_update = watch
    made.step(step)
    return seen


TURNS = (
    "presets=[seeupo]",
    "rlvr.rollout={kind: multi_turn, max_turns: 3}",
    "rlvr.sampling.max_tokens=6",
    "rlvr.group_size=8",
)


def test_each_turn_starts_from_the_weights_that_the_next_one_left(tmp_path, lake):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *TURNS, "rlvr.optimizer.learning_rate=0.003")
    seen = watched(made)
    turns = [columns["turn"][columns["mask"]].unique().tolist() for columns, *_ in seen]
    assert turns == sorted(turns, reverse=True) and len(turns) == 3
    whole = sum(columns["mask"].long() for columns, *_ in seen)
    assert whole.max() == 1
    for columns, _, present in seen:
        torch.testing.assert_close(columns["logp_old"][columns["mask"]], present[columns["mask"]], atol=1e-4, rtol=1e-4)
    factors = [columns["advantage"][:, 1:].abs().amax(1) for columns, *_ in seen]
    moved = factors[2][factors[0] > 0] / factors[0][factors[0] > 0]
    assert ((moved >= 0.8 - 1e-5) & (moved <= 1.2 + 1e-5)).all() and (moved - 1).abs().max() > 1e-4
    assert made.learner.updates_done == 1 and [batch.schedule_index for _, batch, _ in seen] == [0, 0, 0]
    assert [batch.compares for _, batch, _ in seen] == [True, False, False]


def test_with_one_turn_it_is_a_plain_step(tmp_path, lake):
    weights = []
    for replay in ("seeupo", "no_replay"):
        (tmp_path / replay).mkdir()
        more = (*TURNS, "rlvr.rollout.max_turns=1", f"rlvr.replay={replay}", "rlvr.mini_batches=2")
        made = toys.trainer(tmp_path / replay, lake, toys.lake(tmp_path / replay), *more)
        made.run()
        weights.append(torch.cat([p.detach().flatten() for p in made.learner.model.parameters()]))
    assert torch.equal(*weights)


def test_answers_without_turns_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"rlvr\.replay: seeupo needs turn.*multi_turn"):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.replay=seeupo"]))


def test_what_was_sampled_ahead_needs_a_correction_that_every_part_has(tmp_path):
    """From the second part on the ratio starts from the trainer's own log-probabilities, so it corrects for nothing."""
    more = ["presets=[seeupo]", "rlvr.sampler.serve=true", "rlvr.staleness=1"]
    with pytest.raises(RecipeError, match=r"rlvr\.staleness: 1 .*replay: seeupo.*old_logp: trainer"):
        check(read_recipe(toys.recipe(tmp_path), more))
    check(
        read_recipe(
            toys.lake(tmp_path), [*more, "rlvr.old_logp=trainer", "rlvr.objective=clip", "rlvr.credit=[truncated_is]"]
        )
    )
