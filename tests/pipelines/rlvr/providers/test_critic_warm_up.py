"""Warm-up: the critic is fitted while the policy stands still, to returns or to what a function thinks of each state."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import toys

from pipelines.base.errors import Interrupted, RecipeError
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.common.heuristic import Heuristic

WARM = ["rlvr.advantage=gae", "rlvr.optimizer={learning_rate: 0.001, schedule: linear, warmup: 0}"]
CRITIC = "rlvr.providers=[{kind: critic, learning_rate: 0.003, warm_up: %d}]"
HEURISTIC = """
def worth(prompts, completions, answer, **columns):
    texts = [completion[0]["content"] for completion in completions]
    return [None if len(text) == 2 else 0.5 + 0.125 * len(text) for text in texts]
"""


def trainer(tmp_path, start, *overrides):
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), *WARM, *overrides)


def weights(module):
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def test_the_policy_stands_still_and_its_schedule_begins_when_it_moves(tmp_path, start):
    made = trainer(tmp_path, start, CRITIC % 2)
    rates, policy, critic = [], [weights(made.learner.model)], [weights(made.learner.providers["critic"].network)]
    for step in range(4):
        rates.append(made.step(step).get("optimizer/learning_rate"))
        policy.append(weights(made.learner.model))
        critic.append(weights(made.learner.providers["critic"].network))
    assert [torch.equal(a, b) for a, b in pairwise(policy)] == [True, True, False, False]
    assert not any(torch.equal(a, b) for a, b in pairwise(critic))
    assert rates == [None, None, 0.001, 0.0005], "two steps are the whole schedule"


def test_a_heuristic_reads_the_tags_of_reasoning(tmp_path, monkeypatch):
    """Also of a tokenizer that has them as special tokens: one inside the block is worth less than one behind it."""
    (tmp_path / "inside.py").write_text(
        "def worth(prompts, completions, **columns):\n"
        "    texts = [completion[0]['content'] for completion in completions]\n"
        "    return [float('</think>' in t) + 0.5 * ('<think>' in t) for t in texts]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tokenizer = models.train_tokenizer("bpe", 300, ["ab"])
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["[THINK]", "[/THINK]"]}, replace_extra_special_tokens=False
    )
    ids = [tokenizer.bos_token_id or 0, *tokenizer("[THINK]a[/THINK]b", add_special_tokens=False)["input_ids"]]
    heuristic = Heuristic("inside:worth")
    problem = Problem(uid="u", prompt=[], answer="", verifier="exact", source="s", licence="l")
    heuristic.scorer = SimpleNamespace(tokenizer=lambda: tokenizer)
    heuristic.problems, heuristic.timeout_s = {7: problem}, 60.0
    tokens, mask = torch.tensor([ids]), torch.tensor([[False] + [True] * (len(ids) - 1)])
    columns = {"problem": torch.tensor([7]), "mask": mask, "scored": torch.tensor([True])}
    values = heuristic.values(tokens, columns, mask)
    assert values[0, 1:].tolist() == [0.0, 0.5, 0.5, 1.5], "before each token: nothing, the block, in it, behind it"


def test_a_run_that_was_stopped_in_the_warm_up_ends_alike(tmp_path, start):
    results = []
    for name, run in (
        ("whole", lambda build: build().run()),
        ("stopped", lambda build: toys.run_stopped(build, step=1)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        run(lambda folder=folder: trainer(folder, start, CRITIC % 2, "rlvr.commit.every=1"))
        results.append(toys.result(folder / "work"))
    assert results[0] == results[1]


def test_a_sampler_that_disagrees_is_noticed_before_the_policy_moves(tmp_path, start):
    made = trainer(tmp_path, start, CRITIC % 2)
    sampled = made.sampler.extend
    made.sampler.extend = lambda *args, **more: [
        replace(row, logp=[0.0, *row.logp[:-1]]) for row in sampled(*args, **more)
    ]
    with pytest.raises(Interrupted, match="sampler and trainer disagree"):
        made.step(0)


@pytest.fixture
def worth(tmp_path, monkeypatch):
    (tmp_path / "knowing.py").write_text(HEURISTIC)
    monkeypatch.syspath_prepend(tmp_path)
    return "rlvr.providers=[{kind: critic, learning_rate: 0.005, epochs: 15, warm_up: 1, heuristic: 'knowing:worth'}]"


def test_a_heuristic_is_what_the_critic_knows_when_the_policy_starts_and_returns_take_it_back(tmp_path, start, worth):
    """Every answer is worth 0 here, and the heuristic says more for every letter."""
    made = trainer(tmp_path, start, worth, "rlvr.reward={kind: composite, terms: [{kind: verifier, weight: 0.0}]}")
    critic, errors = made.learner.providers["critic"], []
    rows, _ = made.collect(0)
    columns = made._pack(rows, 0)
    made.learner.fill(columns["token"], columns)
    mask = columns["mask"]
    told = critic.heuristic.values(columns["token"], columns, mask)
    place = mask.cumsum(1) - 1
    for row, index in zip(rows, range(len(rows)), strict=True):
        for position in mask[index].nonzero().flatten().tolist():
            text = made.tokenizer.decode(
                row.tokens[position - int(place[index, position]) : position], skip_special_tokens=True
            )
            value = told[index, position].item()
            assert value != value if len(text) == 2 else value == 0.5 + 0.125 * len(text)
    known = told.isfinite()
    assert not known[~mask].any() and known.any() and (mask & ~known).any()
    for step in range(3):
        made.step(step)
        critic.fill(columns["token"], columns)
        errors.append(float((columns["value"] - told)[known].abs().mean()))
    assert errors[0] < 0.25 < errors[2], "after the warm-up the returns, all 0, are what it is fitted to"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*WARM, CRITIC % 4], r"rlvr\.providers: the policy stands still while critic is warmed up, for 4 steps, and steps is 4"),
        ([*WARM, "rlvr.providers=[{kind: critic, heuristic: 'os:getcwd'}]"], r"rlvr\.providers\.heuristic: .*Set warm_up: 5"),
        ([*WARM, "rlvr.providers=[{kind: critic, warm_up: 1, heuristic: 'os:gone'}]"], r"rlvr\.providers\.heuristic: os has no gone"),
        (["presets=[era]", "rlvr.providers=[critic]"], r"at tokens.*Set at: turns, discount: 0\.99, lam: 0\.99 there"),
        (
            ["presets=[era]", "rlvr.providers=[{kind: critic, at: turns, discount: 0.9, lam: 0.99}]"],
            r"other values \(discount 0\.9\) than advantage: turn_gae reads\. Set discount: 0\.99 there",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), overrides))


def test_a_critic_of_turns_with_the_advantages_own_settings_is_none_of_these(tmp_path):
    check(read_recipe(toys.lake(tmp_path), ["presets=[era]"]))
    turns = "rlvr.providers=[{kind: critic, at: turns, discount: %s}]"
    others = ["rlvr.rollout=multi_turn", "rlvr.advantage=gae"]
    check(read_recipe(toys.lake(tmp_path), [*others, turns % 1.0]))
    with pytest.raises(
        RecipeError, match=r"other values \(discount 0\.5\) than advantage: gae reads\. Set discount: 1\.0"
    ):
        check(read_recipe(toys.lake(tmp_path), [*others, turns % 0.5]))
