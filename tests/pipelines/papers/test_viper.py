"""VIPER: a turn is paid the likelihood of what it leads to, given what was shown before; the texts of experts; a run."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import pytest
import torch
import toys
from scripted import conversation, ids, show, tokenizer

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.environments._observed import of_experts
from pipelines.environments.frozen_lake import ACTIONS, World
from pipelines.recipe.read import read_recipe

UID = "a" * 32
PROMPT = [
    {"role": "system", "content": "walk"}, {"role": "user", "content": "ab"}, {"role": "assistant", "content": "up"},
    {"role": "user", "content": "xy"},
]  # fmt: skip
PROBLEMS = {UID: Problem(uid=UID, prompt=PROMPT, answer="", verifier="exact", source="s", licence="l")}
MODEL = toys.model(vocab=128).eval()


class Watched:
    """A real model's log-probabilities, one passage at a time; notes what it is asked."""

    def __init__(self):
        self.asked = []

    def load(self, model):
        pass

    def tokenizer(self, model="policy"):
        return tokenizer()

    def log_probs(self, passages, *, model="policy"):
        self.asked += [(show(p.context), show(p.text), model) for p in passages]
        return [_log_probs([*p.context, *p.text])[len(p.context) - 1 :] for p in passages]


def _log_probs(tokens):
    """Of all tokens but the first."""
    with torch.no_grad():
        logp = MODEL(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
    return logp[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).squeeze(1)


def row(*observations, **more):
    """The policy says one thing a turn and is shown these."""
    talk = [text for turn, _ in enumerate(observations) for text in (f"go {turn}", "heard")][:-1]
    return conversation(UID, *talk, turn_observation=list(observations), **more)


def paid(*rows, scorer=None, **settings):
    part, scorer = bind("rlvr.reward", {"kind": "viper", **settings}).fn, scorer or Watched()
    part.connect(scorer)
    part.score(list(rows), PROBLEMS)
    return scorer


def test_a_turn_is_paid_the_likelihood_of_what_it_leads_to():
    first = row("cde", "f")
    asked = paid(first, model="folder").asked
    assert asked == [("ab\n\nxy", "\n\ncde\n\nf", "folder")], "what the policy said is not there"
    logp = _log_probs(ids("ab\n\nxy\n\ncde\n\nf"))[5:]
    assert first.turn_reward == pytest.approx([float(logp[:5].sum()), float(logp[5:].sum())], abs=1e-5)
    assert first.score == pytest.approx(float(logp.sum()), abs=1e-5), "the log-likelihood of all that was shown"
    assert first.components["outcome"] == 1 and first.correct and first.components["turn.viper"] == first.score


def test_what_a_turn_is_paid_does_not_depend_on_later_ones():
    first, second = row("cde", "f", "gg"), row("cde", "hi")
    paid(first, second)
    assert first.turn_reward[0] == pytest.approx(second.turn_reward[0], abs=1e-5)
    assert first.turn_reward[1] != pytest.approx(second.turn_reward[1], abs=1e-3)


def test_means_and_scales_by_hand():
    scorer = Watched()
    scorer.log_probs = lambda passages, model: [torch.tensor([-0.5] * 5 + [-0.75] * 3)]
    for settings, values in (
        ({}, [-2.5, -2.25]),
        ({"per_token": True}, [-0.5, -0.75]),
        ({"low": -2.75, "high": -2.25}, [0.5, 1.0]),
        ({"low": -2.4, "high": 0.0}, [0.0, 0.0625]),
    ):
        first = row("cde", "f")
        paid(first, scorer=scorer, **settings)
        assert first.turn_reward == pytest.approx(values)


def test_nothing_shown_is_worth_nothing_and_what_cannot_be_scored_is_unscored():
    last = row("cde", "")
    assert paid(last).asked[0][1] == "\n\ncde" and last.turn_reward[1] == 0.0 != last.turn_reward[0]
    scorer = Watched()
    scorer.log_probs = lambda passages, model: [torch.full((len(passages[0].text),), torch.nan)]
    long = row("cde")
    paid(long, scorer=scorer)
    assert long.score is None and long.turn_reward == [1.0]


@pytest.mark.parametrize("settings", [{"low": 0.0}, {"high": 1.0}, {"low": 1.0, "high": 1.0}])
def test_half_a_scale_is_refused(settings):
    with pytest.raises(RecipeError, match="scales by both low and high"):
        bind("rlvr.reward", {"kind": "viper", **settings})


def test_a_single_answer_has_no_turns():
    single = row("cde")
    single.turn_reward = None
    with pytest.raises(RecipeError, match="viper pays turns, and the rollout has none"):
        paid(single)


def test_experts_texts_are_their_episodes_without_a_word():
    texts = list(islice(of_experts("frozen_lake", 3, {"side": 3}), 20))
    for text in texts:
        pictures = text.split("\n\n")
        assert len(pictures) >= 3 and "G" not in pictures[-1] and all("G" in picture for picture in pictures[:-1])
        assert not any(action in text for action in ACTIONS)
        for before, after in pairwise(pictures):
            world = World()
            rows = [line.replace("A", "S").replace("O", "H").replace(".", "F") for line in before.split("\n")]
            told = []
            for action in ACTIONS:
                world._open(rows)
                told.append(world.step(action).observation)
            assert after in told
    with pytest.raises(RecipeError, match="refuses its config"):
        next(of_experts("frozen_lake", 3, {"length": 3}))
    with pytest.raises(DataError, match=r"none of 1,000 messages of the expert of worked_sums ended"):
        next(of_experts("worked_sums", 3, {}))


WATCH = "{kind: environment, task: frozen_lake, size: 16, seed: 5, config: {side: 3}, text_column: %s}"


def test_a_source_of_texts(tmp_path):
    from pipelines.curate.run import run
    from pipelines.data.dataset import read_split
    from pipelines.stage.report import Report

    recipe = read_recipe(
        toys.recipe(tmp_path), [f"curate.sources=[{WATCH % 'observations'}]", "curate.near_duplicates=null"]
    )
    run(recipe.curate, recipe.model, out=tmp_path, report=Report(tmp_path / "w"), seed=0)
    texts = {each.raw_text for each in read_split(tmp_path, "train", raw_texts=True)}
    expected = set(islice(of_experts("frozen_lake", 5, {"side": 3}), 16))
    assert len(texts) > 9 and texts <= expected
    for source in (
        WATCH % "actions",
        WATCH.replace("environment, task: frozen_lake", "reasoning_gym, task: x") % "observations",
    ):
        with pytest.raises(RecipeError, match="`observations` of an environment's expert"):
            read_recipe(toys.recipe(tmp_path), [f"curate.sources=[{source}]"])


def test_a_run(tmp_path, lake):
    """The preset on FrozenLake: turns are paid for what they lead to, the last picture among it, and no reward of the world's."""
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), "presets=[viper]", "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.steps=2",
        f"rlvr.reward={{kind: viper, model: '{lake / 'sft/out/model'}', per_token: true}}",
    )  # fmt: skip
    rows, _ = made.collect(0)
    for each in rows:
        assert len(each.turn_observation) == len(each.turn_reward) and all(value < 0 for value in each.turn_reward)
        assert ("G" in each.turn_observation[-1]) != bool(each.correct), "the goal is hidden by who stands on it"
    made.run()
    values = [history for _, history in toys.history(tmp_path / "work")]
    assert all(v["reward_component/turn.viper"] < 0 <= v["reward_component/outcome"] for v in values)
    logged = next((tmp_path / "work").rglob("rollouts.jsonl")).read_text().splitlines()
    assert all(json.loads(line)["score"] < 0 for line in logged)
