"""Losses of SFT: the sheet's examples, their gradients, and both through the real stage, with several updates a step."""

from __future__ import annotations

import json

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind, load, names
from pipelines.contract.columns import SFT_COLUMNS
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.sft.pack import micro_batches

SLOT = "sft.loss"
NATS = st.lists(st.floats(-8, 0, width=32), min_size=1, max_size=6)
PSFT = ("sft.loss=psft", "sft.mini_batches=4")


def gradient(spec, logp, old=None):
    """(values, their sum's derivative by each log-probability)."""
    free = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    old = torch.zeros(len(logp), dtype=torch.float64) if old is None else torch.tensor(old, dtype=torch.float64)
    values = bind(SLOT, spec)({"logp": free, "logp_old": old})
    values.sum().backward()
    return values.detach(), free.grad


@pytest.mark.parametrize(("spec", "values", "expected"), [
    ("cross_entropy", (0.9, 0.5, 0.05), (0.105361, 0.693147, 2.995732)),
    ("dft", (0.9, 0.5, 0.05), (0.094824, 0.346574, 0.149787)),
    ("psft", (1.1, 1.5, 0.5), (-1.1, -1.28, -0.5)),
])  # fmt: skip
def test_the_sheet_s_examples(spec, values, expected):
    made, _ = gradient(spec, torch.tensor(values, dtype=torch.float64).log().tolist())
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", names(SLOT))
def test_each_declares_itself_and_reads_the_table(name):
    fn = load(SLOT, name)
    assert set(bind(SLOT, name).takes) <= set(SFT_COLUMNS) and fn.card.paper and ">>>" in fn.__doc__


@given(NATS)
def test_dft_pulls_with_the_probability_times_what_cross_entropy_pulls(logp):
    _, ours = gradient("dft", logp)
    _, plain = gradient("cross_entropy", logp)
    torch.testing.assert_close(ours, torch.tensor(logp, dtype=torch.float64).exp() * plain)


@given(NATS, st.integers(-30, 30).map(lambda n: n / 20 + 0.01), st.sampled_from([0.1, 0.28, 1.0]))
def test_psft_stops_where_a_token_has_risen_enough(logp, moved, high):
    _, ours = gradient({"kind": "psft", "high": high}, [value + moved for value in logp], logp)
    rho = torch.tensor(moved, dtype=torch.float64).exp()
    expected = -rho if rho < 1 + high else torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(ours, expected.expand(len(logp)))


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [("sft.loss=dft",), PSFT], ids=["dft", "psft"])
def test_the_stage_learns_and_a_killed_run_ends_with_the_same_weights(tmp_path, data, overrides):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    overrides = (*overrides, "sft.steps=8")
    whole = toys.sft_trainer(tmp_path / "a", data, *overrides)
    before = whole.heldout_loss()
    whole.run()
    assert whole.heldout_loss() < before - 0.1, "the held-out loss is the cross-entropy"
    stopped = toys.run_stopped(lambda: toys.sft_trainer(tmp_path / "b", data, *overrides), 5, None)
    assert torch.equal(weights(whole), weights(stopped))
    assert toys.history(tmp_path / "a/work") == toys.history(tmp_path / "b/work")


def test_a_step_s_updates_see_the_model_before_it(tmp_path, data):
    """By hand: the same rows, ratios to the log-probabilities before the first update, one optimizer step for each part."""
    made = toys.sft_trainer(
        tmp_path, data, *PSFT, "sft.optimizer.learning_rate=0.01", "sft.optimizer.warmup=0", "sft.steps=3"
    )
    (tmp_path / "hand").mkdir()
    hand = toys.sft_trainer(
        tmp_path / "hand", data, *PSFT, "sft.optimizer.learning_rate=0.01", "sft.optimizer.warmup=0", "sft.steps=3"
    )
    assert made.updates == 4 and made.stepper.total == 12
    made.make_step(0)
    rows = hand.step_rows(0)
    parts = [rows[i::4] for i in range(4)]
    assert sorted(map(tuple, rows)) == sorted(tuple(row) for part in parts for row in part)

    def scores(part):
        [(layout, targets)] = micro_batches(hand.documents, part, 10_000)
        return hand.policy.score(layout, targets)[0]

    hand.settings = hand.settings.model_copy(update={"micro_batch_tokens": 10_000})
    with torch.no_grad():
        old = [scores(part) for part in parts]
    clipped = 0
    for number, (part, before) in enumerate(zip(parts, old, strict=True)):
        rho = (scores(part) - before).exp()
        clipped += int((rho > 1.28).sum())
        torch.where(rho < 1.28, -rho, torch.full_like(rho, -1.28)).mean().backward()
        hand.stepper.step(number)
    assert clipped > 0, "the trust region acted"
    torch.testing.assert_close(weights(made), weights(hand), atol=1e-4, rtol=1e-3)


def test_several_updates_of_cross_entropy_are_as_many_smaller_steps(tmp_path, data):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    many = toys.sft_trainer(tmp_path / "a", data, "sft.mini_batches=8", "sft.steps=2")
    few = toys.sft_trainer(tmp_path / "b", data, "sft.tokens_per_step=64", "sft.steps=16")
    assert many.updates == 8 and few.updates == 1 and many.stepper.total == few.stepper.total
    rows = [few.step_rows(step) for step in range(16)]
    few.step_rows = lambda step: rows[step]
    for step in range(2):
        many.make_step(step)
    for step in range(16):
        few.make_step(step)
    torch.testing.assert_close(weights(many), weights(few))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sft.loss=psft"], r"sft\.loss: psft compares with the model before the step.*Set mini_batches"),
        (["sft.loss=dtf"], "Did you mean 'dft'"),
        (["sft.loss={kind: psft, high: 0}", "sft.mini_batches=8"], r"sft\.loss\.high"),
        (["sft.loss={kind: dft, beta: 1}"], r"sft\.loss\.beta: no such setting"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), overrides))


def test_fewer_rows_than_updates_are_told_of(tmp_path, data):
    made = toys.sft_trainer(tmp_path, data, "sft.loss=psft", "sft.mini_batches=1000")
    assert 1 < made.updates < 1000
    told = [
        e for e in map(json.loads, (tmp_path / "work/spool.jsonl").read_text().splitlines()) if "mini_batches" in str(e)
    ]
    assert len(told) == 1 and str(made.updates) in str(told[0])


def test_a_step_of_one_row_has_nothing_to_compare(tmp_path, data):
    with pytest.raises(DataError, match=r"sft\.tokens_per_step: a step of 64 tokens has one row"):
        toys.sft_trainer(tmp_path, data, *PSFT, "sft.tokens_per_step=64")
