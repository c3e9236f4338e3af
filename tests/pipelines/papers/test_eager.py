"""EAGER: questions from the goal, asked of what was done so far, paid once; what a success takes back; a run."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import conversation, show, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.papers.eager import BLANK, GREEDY, bonuses

UID = "a" * 32
PROBLEM = Problem(
    uid=UID, prompt=[{"role": "user", "content": "open the red box"}], answer="", verifier="exact", source="s", licence="l",
    info={"task": "a key"},
)  # fmt: skip


class Answers:
    """Knows a word as soon as it was said: half sure of each of its tokens, or of another word."""

    def __init__(self):
        self.asked = []

    def load(self, model):
        pass

    def tokenizer(self, model="policy"):
        return tokenizer()

    def statistics(self, passages, statistics, *, model="policy"):
        assert statistics is GREEDY
        values = []
        for passage in passages:
            text, word = show(passage.context), show(passage.text)
            self.asked.append((text, word, model))
            told = text.split("\n\n")[0]
            values.append(torch.tensor([[math.log(0.5), float(word in told)]] * len(word)))
        return values


def scored(*rows, **settings):
    part, answers = bind("rlvr.reward", {"kind": "eager", "weight": 1.0, **settings}).fn, Answers()
    part.connect(answers)
    part.score(list(rows), {UID: PROBLEM})
    return answers.asked


def test_reasoning_in_special_tags_stays_in_what_was_said():
    """The model is asked about the reasoning as it stands in the text, not as if it had been said aloud."""
    own = models.train_tokenizer("bpe", 300, ["ab"])
    own.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]}, replace_extra_special_tokens=False)
    row = conversation(UID, "look")
    row.tokens = own("[THINK]hm[/THINK]yes<|end|>", add_special_tokens=False)["input_ids"]
    row.role, row.turn = [3] * len(row.tokens), [0] * len(row.tokens)
    part = bind("rlvr.reward", "eager").fn
    part.own = own
    assert part._told(row) == ["assistant: <think>hm</think>yes"]


def test_a_turn_is_paid_for_the_words_that_it_tells_first():
    row = conversation(UID, "look", "a red lamp", "the red box", "fine", "box", outcome=0.0, earlier=0.25)
    asked = scored(row, model="folder")
    assert row.turn_reward == pytest.approx([0.25, 0.25 + 0.5**3 + 0.5**3, 0.0]), (
        "in turn 1 both, and none of them again"
    )
    assert [word for _, word, _ in asked] == ["red", "box"] * 3 and {model for *_, model in asked} == {"folder"}
    first, *_, last = (text for text, _, _ in asked)
    assert first.strip().endswith(f"assistant: look\n\nopen the {BLANK} box")
    assert "user: a red lamp\nassistant: the red box\nuser: fine\nassistant: box\n\n" in last and last.strip().endswith(
        f"red {BLANK}"
    )
    assert row.components["answered"] == 1.0 and row.score == pytest.approx(0.5**3 + 0.5**3)


def test_a_success_gives_it_back():
    row, lost = conversation(UID, "red", "x", "no"), conversation(UID, "red", "x", "no", outcome=0.0)
    scored(row, lost, discount=0.5)
    assert lost.turn_reward == pytest.approx([0.125, 0.0])
    assert row.turn_reward == pytest.approx([0.125, 1.0 - 0.25]) and row.components["answered"] == 0.5


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.9]), min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from([0.5, 0.9, 1.0]),
)
def test_successes_have_no_bonus_and_each_question_pays_once(known, discount):
    won, lost = (bonuses(known, success, 2.0, discount) for success in (True, False))
    assert sum(value * discount**s for s, value in enumerate(won)) == pytest.approx(0.0, abs=1e-9)
    first = [next((turn[q] for turn in known if turn[q] > 0), 0.0) for q in range(3)]
    assert sum(lost) == pytest.approx(2.0 * sum(first)) and all(value >= 0 for value in lost)


def test_goals_and_words_are_chosen():
    row = conversation(UID, "key", outcome=0.0)
    assert [(text.split("\n\n")[-1].strip(), word) for text, word, _ in scored(row, goal="task")] == [
        (f"a {BLANK}", "key")
    ]
    assert [word for _, word, _ in scored(conversation(UID, "x"), pattern="[a-z]", most=3, skip=["o"])] == [
        "p",
        "e",
        "n",
    ]
    silent = conversation(UID, "x", outcome=0.0)
    assert (
        scored(silent, pattern="[0-9]+") == [] and silent.turn_reward == [0.0] and silent.components["answered"] == 0.0
    )
    with pytest.raises(RecipeError, match=r"rlvr\.reward\.pattern: .*regular expression"):
        scored(pattern="(")


def test_the_first_choice_of_the_model():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    values = GREEDY.of(logits, torch.tensor([2, 0]), logits)
    assert values[:, 1].tolist() == [0.0, 1.0]
    assert values[:, 0].exp().tolist() == pytest.approx(
        [math.e / (1 + math.e**2 + math.e), math.e**3 / (math.e**3 + 2)]
    )


def test_a_run(tmp_path, lake):
    """The preset on FrozenLake, whose goal in words is the map: every letter of a hole or the goal is asked for."""
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), "presets=[eager]", "rlvr.rollout={kind: multi_turn, max_turns: 2}", "rlvr.steps=1",
        "rlvr.reward={kind: eager, weight: 0.5, discount: 0.99, pattern: '[OG]', most: 2}",
    )  # fmt: skip
    made.run()
    (values,) = [history for _, history in toys.history(tmp_path / "work")]
    assert 0 <= values["reward_component/answered"] <= 1 and "reward_component/turn.eager" in values
