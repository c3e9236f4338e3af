"""Sokoban and the bandit through the real trainer with StarPO-S: what a step holds, and a resume with luck in it."""

from __future__ import annotations

import pytest
import toys

from pipelines import environments
from pipelines.papers.ragen import sokoban

NAMES = [f"{first}{last}" for first in ("ba", "ke", "li", "mo") for last in ("dan", "rus", "tel", "vim")]
PLAYED = (
    "presets=[starpo_s]", "rlvr.rollout.max_turns=3", "rlvr.filter.share=0.5", "rlvr.sampling.max_tokens=6", "rlvr.group_size=6",
    "rlvr.sampling.temperature=1.2",
)  # fmt: skip


def worlds(folder):
    """A recipe of both worlds, whose starting policy has seen right and wrong arms alike."""
    config = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"num_key_value_heads": 2, "max_position_embeddings": 320, "tie_word_embeddings": True}
    board = {"kind": "environment", "task": "sokoban", "splits": ["train"]}
    shown = {"rows": 4, "columns": 5, "walls": 0.0, "demonstrations": True}
    return toys.recipe(
        folder,
        model={"fresh": {"architecture": "llama", "config": config}},
        curate={
            "sources": [
                board | {"size": 500, "seed": 1, "config": shown, "splits": ["sft", "heldout"]},
                board | {"size": 100, "seed": 2, "config": {**shown, "demonstrations": False, "scale": 0.1}},
                {
                    "kind": "environment", "task": "bandit", "size": 512, "seed": 3,
                    "config": {"low": NAMES[:8], "high": NAMES[8:], "demonstrations": True, "errors": 0.5},
                },
            ],
            "near_duplicates": None, "decontaminate": None, "splits": {"train": 0.4, "sft": 0.5, "heldout": 0.1},
        },
        sft={"split": "sft", "steps": 60, "max_length": 256, "tokens_per_step": 2000, "micro_batch_tokens": 2000},
        rlvr={"steps": 3, "prompts": 8},
    )  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    return toys.start(folder, worlds(folder), ["sft.steps=120"])


@pytest.mark.slow
def test_turns_have_the_boards_keys_and_rewards(tmp_path, start):
    made = toys.trainer(tmp_path, start, worlds(tmp_path), *PLAYED, "rlvr.prompts=16")
    rows, _ = made.collect(0)
    names = set()
    for row in rows:
        problem = made.by_uid[row.uid]
        names.add(problem.info["environment"])
        if problem.info["environment"] != "sokoban":
            continue
        world, keys, rewards = sokoban.World(), [], []
        world.reset(problem)
        for text in row.text.split(" | "):
            keys.append(environments.key_number(world.state_key()))
            step = world.step(text)
            rewards.append(step.reward)
        assert row.turn_state == keys and row.turn_reward == rewards and row.score == sum(rewards)
        assert row.correct == world.solved and row.components["turn.moves"] < 0
    assert names == {"sokoban", "bandit"}


@pytest.mark.slow
def test_a_run_broken_off_and_started_again_ends_in_the_same_bytes(tmp_path, start):
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    toys.trainer(tmp_path / "whole", start, worlds(tmp_path), *PLAYED).run()
    toys.run_stopped(lambda: toys.trainer(tmp_path / "halves", start, worlds(tmp_path), *PLAYED), 1)
    whole, halves = (toys.result(tmp_path / name / "work") for name in ("whole", "halves"))
    assert whole == halves
    paid = [values["reward/mean"] for _, values in whole[1] if "reward/mean" in values]
    assert len(set(paid)) > 1
