"""Rollouts sampled from corrupted prompts, trained after the clean one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import toys
from scripted import context, ids, parts, request, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Role, Stop
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.diagnostics import Outcome, of_rollouts
from pipelines.rlvr.pack import pack


def rollouts(requests, seed=0, script=lambda prefix, number: "x", entropy=False, **settings):
    ctx = context(script, seed=seed, entropy=entropy)
    return bind("rlvr.rollout", {"kind": "noisy", **settings}).fn.run(requests, ctx), ctx


def test_levels_go_round_and_every_row_follows_the_clean_prompt():
    asked = [request("ab cd", 3, group=5), request("ef", 1, group=2)]
    rows, ctx = rollouts(asked, levels=[0.0, 1.0], script=lambda prefix, number: str(number))
    assert [(row.group, row.extras.get("noise", 0.0)) for row in rows] == [(5, 0.0), (5, 1.0), (5, 0.0), (2, 0.0)]
    clean, dirty = [(Role.PROMPT, "ab cd"), (Role.POLICY, "0")], [(Role.PROMPT, "ab cd"), (Role.TEACHER_FORCED, "1")]
    assert parts(rows[0]) == clean and parts(rows[1]) == dirty
    [call] = ctx.sampler.calls
    assert call.prefixes[0] == call.prefixes[2] == "ab cd" and call.prefixes[3] == "ef", "one call for all"
    assert "_ _" in call.prefixes[1] and not {"ab", "cd"} & set(call.prefixes[1].split())
    assert rows[0].logp_old[5:] == [-0.1, -0.2] and rows[1].logp_old == [0.0] * 7, "the trainer's own are filled in"
    assert rows[1].tokens == [*ids("ab cd1"), tokenizer().eos_token_id] and rows[1].stop == Stop.END
    assert pack(rows, step=0, total_steps=1)["noise"].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_levels_fall_over_the_run_to_a_share_of_what_they_were():
    """The code's values: times 1 at the start, 0.75 half-way, 0.5 at the end."""
    fall = bind("rlvr.rollout", {"kind": "noisy", "levels": [0.0, 0.4, 0.8], "last": 0.5}).fn
    for progress, factor in ((0.0, 1.0), (0.5, 0.75), (1.0, 0.5)):
        ctx = dataclasses.replace(context(lambda prefix, number: "x"), progress=progress)
        drawn = fall.run([request("a " * 200, 3)], ctx)
        assert [row.extras.get("noise", 0.0) for row in drawn] == pytest.approx([0, 0.4 * factor, 0.8 * factor])
        shares = [prefix.count("_") / 200 for prefix in ctx.sampler.calls[0].prefixes]
        assert shares == pytest.approx([0, 0.4 * factor, 0.8 * factor], abs=0.12)


def test_the_run_knows_how_far_it_is(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[noisy_grpo]", "rlvr.rollout.last=0")
    assert {row.extras.get("noise", 0.0) for row in made.collect(0)[0]} == {0.0, 0.3, 0.6, 0.9}
    assert sorted({row.extras.get("noise", 0.0) for row in made.collect(2)[0]}) == pytest.approx([0.0, 0.15, 0.3, 0.45])


def test_an_answer_of_nothing_stays_an_error():
    rows, _ = rollouts([request("ab", 1)], levels=[1.0], script=lambda prefix, number: "")
    assert rows[0].stop == Stop.ERROR and rows[0].tokens == ids("ab") and rows[0].extras["noise"] == 1.0


@pytest.mark.parametrize("unit,mark,text,covered", [
    ("word", "_", "a bc d", "_ _ _"), ("character", "#", "a bc d", "# ## #"), ("sentence", "[...]", "One. Two! 3", "[...] [...] [...]"),
])  # fmt: skip
def test_units(unit, mark, text, covered):
    _, ctx = rollouts([request(text, 1)], levels=[1.0], unit=unit, mark=mark)
    assert covered in ctx.sampler.calls[0].prefixes[0] and text not in ctx.sampler.calls[0].prefixes[0]


def test_the_share_is_the_level_and_each_rollout_has_a_noise_of_its_own():
    text = "a " * 200
    _, ctx = rollouts([request(text, 8)], levels=[0.25, 0.75])
    shares = [prefix.count("_") / 200 for prefix in ctx.sampler.calls[0].prefixes]
    assert all(abs(share - level) < 0.12 for share, level in zip(shares, [0.25, 0.75] * 4, strict=True))
    assert len(set(ctx.sampler.calls[0].prefixes)) == 8
    again, other = (rollouts([request(text, 8)], seed=seed, levels=[0.25, 0.75])[1] for seed in (0, 1))
    assert again.sampler.calls[0].prefixes == ctx.sampler.calls[0].prefixes != other.sampler.calls[0].prefixes


def test_a_context_is_masked_and_the_question_stays_clean():
    asked = [request("read: ab cd. what?", 2, group=0, context="ab cd."), request("no text", 2, group=1)]
    rows, ctx = rollouts(asked, levels=[0.0, 1.0], field="context")
    prefixes = ctx.sampler.calls[0].prefixes
    assert "read: _ _ what?" in prefixes[1] and prefixes[2:] == ["no text"] * 2
    assert [row.extras.get("noise", 0.0) for row in rows] == [0.0, 1.0, 0.0, 0.0]
    assert all(int(Role.POLICY) in row.role for row in rows[2:]), "a problem without the field is asked as it is"


def test_every_token_that_was_sampled_counts():
    """Those sampled from corrupted prompts are teacher-forced and cost as much: lengths and `rlvr.budget` are counted from these."""
    rows, _ = rollouts([request("ab", 2)], levels=[0.0, 1.0], script=lambda prefix, number: "xyz")
    assert [row.sampled_count for row in rows] == [4, 4] and [len(row.sampled()) for row in rows] == [4, 0]
    assert of_rollouts(list(map(Outcome.of, rows)))["rollout/length_mean"] == 4


def test_without_noise_it_is_single_turn():
    asked = [request("ab", 2, group=1), request("cd", 1, group=0)]
    ours, _ = rollouts(asked, levels=[0.0], script=lambda prefix, number: str(number), entropy=True)
    ctx = context(lambda prefix, number: str(number), entropy=True)
    assert ours == bind("rlvr.rollout", "single_turn").fn.run(asked, ctx)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.prompting=paraphrase"], "needs prompting: plain"),
        (["rlvr.filter=mixed"], "noisy_grpo learns from"),
        (["rlvr.rollout=single_turn"], "needs noise.*rollout: noisy"),
        (["rlvr.rollout.levels=[1.5]"], r"levels\.0"),
        (["rlvr.window=0.5"], "rollout: noisy cannot do"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[noisy_grpo]", *overrides]))


def test_noisy_rows_train_from_the_trainer_s_own_log_probabilities(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[noisy_grpo]", "rlvr.steps=1")
    rows, _ = made.collect(0)
    columns = made._pack(rows, 0)
    made.learner.fill(columns["token"], columns)
    assert sorted({row.extras.get("noise", 0.0) for row in rows}) == [0.0, 0.3, 0.6, 0.9]
    assert torch.equal(columns["teacher_forced"].any(1), columns["noise"] > 0)
    with torch.no_grad():
        own = made.learner.passes.per_token(made.learner.passes.log_probs, columns["token"], columns["mask"])
    assert (columns["logp_old"][columns["mask"]] < 0).all()
    torch.testing.assert_close(columns["logp_old"] * columns["mask"], own * columns["mask"], atol=1e-4, rtol=1e-4)
