"""A process reward model that pays turns: its own scores of the conversation up to each turn, what stays the environment's, a run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import toys
from scripted import RewardModels, conversation, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.data.records import Problem, Role
from pipelines.engine import models
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save
from pipelines.rlvr.common.step_scores import sigmoid

UID = "a" * 32
PROBLEM = {
    UID: Problem(
        uid=UID, prompt=[{"role": "user", "content": "go"}], answer="4", verifier="number", source="s", licence="l"
    )
}
STEPS = {"steps": {"separator": "\n\n"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent_prm")
    save(RewardNetwork(toys.model(vocab=128), 2, seed=0, text=False), tokenizer(), folder / "prm", STEPS)
    save(RewardNetwork(toys.model("gpt2", vocab=128), 1, seed=0, text=False), tokenizer(), folder / "short", STEPS)
    save(RewardNetwork(toys.model(vocab=128), 1, seed=0, text=False), tokenizer(), folder / "outcome", {})
    return folder


def row(*messages, **more):
    return conversation(UID, *messages, **more)


def paid(path, *rows, own=None):
    part = bind("rlvr.reward", {"kind": "agent_prm", "model": str(path)}).fn
    part.connect(RewardModels(own or tokenizer()))
    part.score(list(rows), PROBLEM)
    return rows


def test_a_turn_is_paid_the_model_s_score_of_the_conversation_up_to_it(folder):
    first, second = paid(folder / "prm", row("ab", "why", "cde"), row("ab", "so", "f", outcome=0.0))
    scorer = RewardScorer(str(folder / "prm"), Model(path="x"), budget=1, field="f")
    alone = [sigmoid(float(scorer.score([first.tokens[:end]], [1]).mean())) for end in (3, 9)]
    assert first.turn_reward == pytest.approx(alone, abs=1e-5) and first.score == pytest.approx(sum(alone))
    assert (
        first.correct and not second.correct and (first.components["outcome"], second.components["outcome"]) == (1, 0)
    )
    assert second.turn_reward[0] == pytest.approx(first.turn_reward[0], abs=1e-6), "the same conversation so far"
    assert first.turn_components == [{"agent_prm": value} for value in first.turn_reward]


def test_a_relabelled_episode_is_paid_by_what_it_shows(folder):
    """Its messages are teacher-forced (`rollout: hindsight`); the model reads the same tokens."""
    own = row("ab", "why", "cde")
    forced = replace(own, role=[Role.TEACHER_FORCED if role == Role.POLICY else role for role in own.role])
    paid(folder / "prm", own, forced)
    # Two rows of one pass: matrix products may round the last bit of a row otherwise than of the one before.
    assert forced.turn_reward == pytest.approx(own.turn_reward, rel=1e-6)
    assert forced.score == pytest.approx(own.score, rel=1e-6)


def test_a_row_beyond_the_context_is_unscored(folder):
    fine, long = paid(folder / "short", row("ab"), row("ab", "x" * 140, "c"))
    assert fine.score is not None and long.score is None and long.turn_reward == [0.0, 1.0]


def test_what_cannot_score_turns_is_refused(folder):
    with pytest.raises(RecipeError, match="was not trained on labels of turns"):
        paid(folder / "outcome", row("ab"))
    with pytest.raises(RecipeError, match="has another tokenizer or chat template than the policy"):
        paid(folder / "prm", row("ab"), own=models.train_tokenizer("char", 60, ["abc"]))
    with pytest.raises(RecipeError, match="agent_prm pays turns, and the rollout has none"):
        single = row("ab")
        single.turn_reward = None
        paid(folder / "prm", single)


def test_a_run(tmp_path, lake):
    """The preset on FrozenLake: the policy learns from Q less the critic's value, and the environment's verdict is what is reported."""
    own = models.load_tokenizer(lake / "sft/out/model")
    save(RewardNetwork(toys.model(vocab=len(own)), 1, seed=0, text=False), own, tmp_path / "prm", STEPS)
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), "presets=[agent_prm]", "rlvr.rollout={kind: multi_turn, max_turns: 3}",
        f"rlvr.reward={{kind: agent_prm, model: '{tmp_path / 'prm'}'}}", "rlvr.steps=2",
    )  # fmt: skip
    made.run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    assert all(0 < values["reward_component/turn.agent_prm"] <= 3 for values in history)
    rows = [json.loads(line) for line in next((tmp_path / "work").rglob("rollouts.jsonl")).read_text().splitlines()]
    assert rows and all(entry["score"] is not None for entry in rows)
