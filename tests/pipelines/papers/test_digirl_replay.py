"""DigiRL's instruction-level curriculum: which rows train, and which come back."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe


def step_of(seed, rewards=None, values=None):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    columns = columns_of(batch) | {"advantage": batch.mask.float(), "instruction_value": torch.rand(12, generator=draw)}
    if rewards is not None:
        columns |= {"reward": torch.tensor(rewards), "instruction_value": torch.tensor(values)}
    return columns


def own(replay, columns, seed=0):
    [update] = replay.updates(columns, torch.Generator().manual_seed(seed))
    assert not update.replayed
    return update.columns


def test_successes_at_hard_problems_come_first_and_come_back():
    """Gains of 0.9, 0.8, 0.1 and -0.5, then 0.15 and -0.5: the best tenth begins at 0.73, and of both steps at 0.135."""
    replay = bind("rlvr.replay", {"kind": "digirl", "share": 0.1, "stored": 5}).fn
    won = step_of(0, [1.0, 1.0, 1.0] + [0.0] * 9, [0.1, 0.2, 0.9] + [0.5] * 9)
    assert own(replay, won)["in_loss"].tolist() == [True] * 2 + [False] * 10
    assert len(replay.rows) == 12 and won["in_loss"].all(), "the step's own columns are left alone"
    made = own(replay, step_of(1, [1.0] + [0.0] * 11, [0.85] + [0.5] * 11))
    assert made["in_loss"].tolist() == [True] + [False] * 11 + [True] * 2
    assert made["replayed"].tolist() == [False] * 12 + [True] * 2 and len(replay.rows) == 24
    assert sorted(made["instruction_value"][12:].tolist()) == pytest.approx([0.1, 0.2])
    assert torch.equal(made["advantage"][12:], made["mask"][12:].float()), "they keep their advantages"


@pytest.mark.slow
@given(st.integers(0, 300), st.sampled_from([0.1, 0.3, 0.7]), st.integers(0, 5))
def test_laws(seed, share, stored):
    replay = bind("rlvr.replay", {"kind": "digirl", "share": share, "stored": stored, "capacity": 20}).fn
    first, second = step_of(seed), step_of(seed + 1)
    second["in_loss"] = second["in_loss"] & (torch.arange(12) != 3)
    own(replay, first)
    made = own(replay, second)
    gains = [(columns["reward"] - columns["instruction_value"]) for columns in (first, second)]
    news = gains[1][second["in_loss"]]
    every = torch.cat([gains[0], news])
    bound = torch.quantile(every, 1 - share)
    bound = (bound if stored else torch.minimum(bound, news.max())) - 1e-5
    assert int((every >= bound).sum()) >= share * len(every) - 1
    assert torch.equal(made["in_loss"][:12], second["in_loss"] & (gains[1] >= bound)) and made["in_loss"].any()
    joined = min(stored, int((gains[0] >= bound).sum()))
    assert len(made["group"]) == 12 + joined and made["in_loss"][12:].all()
    appended = made["reward"][12:] - made["instruction_value"][12:]
    assert (appended >= bound).all() and len(appended.unique()) == joined
    assert len(replay.rows) == 20


@pytest.mark.slow
def test_it_goes_on_where_it_was_and_a_share_of_all_is_no_replay():
    one, other = (bind("rlvr.replay", {"kind": "digirl", "share": 0.5}).fn for _ in range(2))
    own(one, step_of(0))
    other.load_state_dict(one.state_dict())
    for name, value in own(one, step_of(1)).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(-7), own_value(other, name).nan_to_num(-7)), name
    every = bind("rlvr.replay", {"kind": "digirl", "share": 1.0, "stored": 0}).fn
    own(every, step_of(0))
    assert torch.equal(own(every, step_of(1))["in_loss"], step_of(1)["in_loss"])


def own_value(replay, name):
    """A column of the step that follows, without the replay remembering it."""
    rows = list(replay.rows)
    value = own(replay, step_of(1))[name]
    replay.rows = rows
    return value


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.providers=[archer]"], "needs instruction_value.*digirl"),
        (["rlvr.providers=[]"], r"needs turn_value.*digirl"),
        (["rlvr.rollout=single_turn"], "needs turn|only an episode"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.lake(tmp_path), ["presets=[digirl]", *overrides]))
