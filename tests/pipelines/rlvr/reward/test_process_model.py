"""A reward model on the end of each step: its own scores of prefixes, where steps end, beside a verifier, a run."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import RewardModels, answered, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.data.records import Problem, Role, Stop
from pipelines.engine import models
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.common.step_scores import split_steps

UID = "a" * 32
PROMPT = [{"role": "user", "content": "2 + 2?"}]
PROBLEMS = {UID: Problem(uid=UID, prompt=PROMPT, answer="4", verifier="number", source="s", licence="l")}


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    save(RewardNetwork(toys.model(vocab=128), 2, seed=0, text=False), tokenizer(), folder / "rm", {})
    return folder / "rm"


def scored(scorer, *rows, own=None, **settings):
    part = bind("rlvr.reward", {"kind": "process_model", "model": str(scorer), "separator": "#", **settings}).fn
    part.connect(RewardModels(own or tokenizer()))
    part.score(list(rows), PROBLEMS)
    return rows


def alone(scorer, tokens):
    """The model's own score of one sequence, in a pass of its own."""
    lent = RewardScorer(scorer, Model(path="x"), budget=1, field="f")
    return 1 / (1 + math.exp(-lent.score([tokens], [2]).mean().item()))


def test_a_steps_value_is_the_models_score_of_the_prefix(scorer):
    row, short = scored(scorer, answered(UID, "2#2+2#4"), answered(UID, "4"))
    ends = [4, 8, len(row.tokens)]
    assert row.turn == [-1, -1, 0, 0, 1, 1, 1, 1, 2, 2] and row.turn_state == [0, 1, 2]
    assert row.potential == pytest.approx([alone(scorer, row.tokens[:end]) for end in ends], abs=1e-5)
    assert row.score == row.potential[-1] and row.components["steps"] == 3 and row.correct is True
    assert short.potential == [short.score] and len(set(row.potential)) == 3


def test_a_policy_of_another_tokenizer_is_read_as_text(scorer):
    from pipelines.data.chat import render_answer

    other = models.train_tokenizer("char", 60, ["2 + 4?#"])
    row = answered(UID, "2#4")
    row.tokens[2:] = [*other("2#4", add_special_tokens=False)["input_ids"], other.eos_token_id]
    scored(scorer, row, own=other)
    texts = [render_answer(tokenizer(), PROMPT, text, UID, None)[0] for text in ("2#", "2#4")]
    assert row.potential == pytest.approx([alone(scorer, ids) for ids in texts], abs=1e-5)


def test_a_model_of_steps_says_what_ends_them_and_has_seen_no_end_token_after_one(tmp_path):
    about = {"steps": {"separator": "+"}}
    save(RewardNetwork(toys.model(vocab=128), 1, seed=0, text=False), tokenizer(), tmp_path / "prm", about)
    row, cut = scored(tmp_path / "prm", answered(UID, "2+2#4"), answered(UID, "2+4", Stop.LENGTH), separator=None)
    assert row.turn_state == [0, 1] and row.turn[2:] == [0, 0, 1, 1, 1, 1]
    other = models.train_tokenizer("char", 60, ["2 + 4?#"])
    for text, each in (("2+2#4", row), ("2+4", cut)):
        again = answered(UID, text, each.stop)
        again.tokens[2:] = [*other(text, add_special_tokens=False)["input_ids"], other.eos_token_id][
            : len(again.tokens) - 2
        ]
        scored(tmp_path / "prm", again, own=other, separator=None)
        from pipelines.data.chat import render_answer

        ids, start = render_answer(tokenizer(), PROMPT, text, UID, None, ended=each.stop != Stop.LENGTH)
        ends = [start + 2, len(ids)]
        assert again.potential == pytest.approx([alone(tmp_path / "prm", ids[:end]) for end in ends], abs=1e-5)


def test_what_failed_or_does_not_fit_is_unscored(scorer, tmp_path):
    save(RewardNetwork(toys.model("gpt2", vocab=128), 1, seed=0, text=False), tokenizer(), tmp_path / "short", {})
    fine, long, failed = scored(
        tmp_path / "short", answered(UID, "2#4"), answered(UID, "2#" + "4" * 140), answered(UID, "4", Stop.ERROR)
    )
    assert fine.score is not None and long.score is None and long.potential is None and failed.score is None
    with pytest.raises(RecipeError, match="process_model scores the steps of single answers"):
        scored(scorer, answered(UID, "4", turn=[-1, -1, 0, 0]))


@pytest.mark.parametrize(("more", "words"), [
    (["rlvr.rollout=multi_turn", "rlvr.reward={kind: process_model, model: /x}"], "process_model tells.*rollout: multi_turn already"),
    (["rlvr.reward=[{kind: process_model, model: /x}, {kind: exprl, model: y}]"], "exprl tells.*reward: process_model already"),
])  # fmt: skip
def test_a_row_has_steps_of_one_kind(tmp_path, more, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), more))


def test_beside_a_verifier_the_steps_stay_with_the_row(scorer):
    right, wrong = answered(UID, "2#4"), answered(UID, "2#5")
    terms = ["verifier", {"kind": "process_model", "model": str(scorer), "separator": "#", "weight": 0.0}]
    part = bind("rlvr.reward", {"kind": "composite", "terms": terms}).fn
    part.connect(RewardModels(tokenizer()))
    part.score([right, wrong], PROBLEMS)
    assert [right.score, wrong.score] == [1.0, 0.0]
    alone = scored(scorer, answered(UID, "2#4"))[0]
    assert (
        right.potential == pytest.approx(alone.potential, abs=1e-6)
        and right.turn == alone.turn
        and right.turn_state == [0, 1]
    )
    assert right.components["process_model.steps"] == 2


@given(st.text("ab# ", max_size=20), st.integers(1, 5), st.integers(1, 4))
def test_steps_divide_the_row(text, most, shortest):
    row = answered(UID, text)
    decode = lambda ids: tokenizer().decode(ids, skip_special_tokens=True)  # noqa: E731
    texts = split_steps(row, decode, "#", most=most, shortest=shortest)
    steps = [step for step, role in zip(row.turn, row.role, strict=True) if role == Role.POLICY]
    assert texts[-1] == text and len(texts) <= most and sorted(set(steps)) == list(range(len(texts)))
    assert steps == sorted(steps) and [s for s in row.turn if s < 0] == [-1, -1]
    assert len(texts) == 1 or min(steps.count(k) for k in set(steps)) >= shortest
    assert all(b.startswith(a) and a.endswith("#") for a, b in pairwise(texts))


def test_short_steps_are_counted_by_content():
    decode = lambda ids: tokenizer().decode(ids, skip_special_tokens=True)  # noqa: E731
    row = answered(UID, "a#b#long#c#longer")
    assert split_steps(row, decode, "#", most=9, shortest=4) == ["a#b#", "a#b#long#", "a#b#long#c#longer"]
    assert split_steps(answered(UID, "long#c"), decode, "#", most=9, shortest=4) == ["long#c"]


def test_a_run(tmp_path, start):
    """Clip and Delta with a reward model of the policy's own tokenizer, through the trainer."""
    begun = models.load_tokenizer(start / "sft/out/model")
    save(RewardNetwork(toys.model(vocab=len(begun)), 1, seed=0, text=False), begun, tmp_path / "rm", {})
    steps = f"{{kind: process_model, model: '{tmp_path / 'rm'}', separator: l, most: 4, weight: 0.0}}"
    made = toys.trainer(
        tmp_path, start, toys.recipe(tmp_path), "presets=[clip_delta]", f"rlvr.reward=[verifier, {steps}]", "rlvr.steps=2",
        "rlvr.shaping=[{kind: clip_delta, threshold: 1.0, weight: 1.0}]", "rlvr.group_size=16",
    )  # fmt: skip
    made.run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    assert max(v["reward_component/process_model.steps"] for v in history) > 1
    assert all(torch.isfinite(p).all() for p in made.learner.model.parameters())
