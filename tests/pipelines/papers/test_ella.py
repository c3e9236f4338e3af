"""ELLA: completed instructions are paid once, successes are worth what they were, relevance is learned from what successes share, a run."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import conversation

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.papers import ella as paper
from pipelines.papers.common.instructed import Demonstration, demonstrations

UID = "a" * 32
PROBLEMS = {
    UID: Problem(
        uid=UID, prompt=[], answer="", verifier="exact", source="s", licence="l", info={"mission": "put red by blue"}
    )
}
THINGS = [f"{colour} {kind}" for colour in ("red", "blue", "green") for kind in ("ball", "key")]
counts = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def demonstration(thing, other):
    """Two moves towards a thing that another one stands beside."""
    far = [f"{thing} {steps} forward\n{other} {steps} left\nyou carry nothing" for steps in (2, 1)]
    return Demonstration(f"go to the {thing}", ["forward", "forward"], far)


TAUGHT = [demonstration(thing, other) for thing in THINGS for other in THINGS if other != thing]


@given(counts, st.floats(0.5, 1), st.floats(0, 2))
def test_a_success_is_worth_what_it_was_and_a_failure_keeps_its_pay(paid, discount, weight):
    def worth(values):
        return sum(value * discount**turn for turn, value in enumerate(values))

    assert worth(paper.shaped(paid, True, weight, discount)) == pytest.approx(0, abs=1e-6)
    assert paper.shaped(paid, False, weight, discount) == [weight * count for count in paid]


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=6),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_each_relevant_instruction_is_paid_once(states, relevant):
    newly, ever = paper.completions(states, relevant)
    assert len(newly) == len(states) and sum(newly) == sum(relevant[place] for place in ever)
    assert ever == {place for state in states for place, holds in enumerate(state) if holds}


def test_the_termination_classifier_learns_what_a_last_state_is():
    torch.manual_seed(0)
    network = paper.Termination(16)
    paper.learn_termination(network, TAUGHT[1::2], 40, 1e-2)
    told = paper.precision_and_recall(network, TAUGHT[::2])
    assert told["termination_precision"] > 0.8 and told["termination_recall"] > 0.8
    assert paper.precision_and_recall(network, []) == {}


def test_relevance_begins_with_everything_and_keeps_what_successes_share():
    part = learned(updates=30)
    assert bool((part.relevance(["put red by blue"], part.instructions) < 0.69).all()), "everything is relevant"
    wanted = part.instructions.index("go to the red ball")
    for other in ("blue ball", "green key", "green ball"):
        rows = [episode("red ball 1 forward", f"{other} 1 forward")]
        part.score(rows, PROBLEMS)
        part.on_rollouts(rows)
    assert part.completed == {"put red by blue": {wanted}}
    for _ in range(3):
        part.on_rollouts([])
    relevant = (part.relevance(["put red by blue"], part.instructions) < 0.69).flatten()
    assert relevant.nonzero().flatten().tolist() == [wanted]
    assert part.metrics()["relevance_accuracy"] == 1 == part.metrics()["completed"]
    failed = [episode("blue ball 1 forward", "red ball 1 forward", "red ball 1 forward", outcome=0.0)]
    part.score(failed, PROBLEMS)
    assert failed[0].turn_reward == pytest.approx([0, 0.5, 0]) and failed[0].score == 0.5
    assert failed[0].components["turn.ella"] == 0.5 and not failed[0].correct
    again = bind("rlvr.reward", {"kind": "ella", "environment": "minigrid", "width": 16}).fn
    again.load_state_dict(part.state_dict())
    assert again.completed == part.completed and again.metrics()["relevance_accuracy"] == 1


def learned(**settings):
    """The part after its setup, with demonstrations that need no package."""
    spec = {"kind": "ella", "environment": "minigrid", "weight": 0.5, "width": 16, "learning_rate": 1e-2}
    part = bind("rlvr.reward", {**spec, **settings}).fn
    paper.learn_termination(part.termination, TAUGHT, 40, 1e-2)
    part.instructions = sorted({each.instruction for each in TAUGHT})
    return part


def episode(*observations, **more):
    talk = [text for turn, _ in enumerate(observations) for text in (f"go {turn}", "heard")][:-1]
    return conversation(UID, *talk, turn_observation=[f"{each}\nyou carry nothing" for each in observations], **more)


def test_what_has_no_turns_or_no_instruction_is_refused():
    part = learned()
    single = episode("red ball 1 forward")
    single.turn_reward = None
    with pytest.raises(RecipeError, match="ella pays turns, and the rollout has none"):
        part.score([single], PROBLEMS)
    bare = Problem(uid=UID, prompt=[], answer="", verifier="exact", source="s", licence="l")
    with pytest.raises(DataError, match=r"has no text in info\.mission"):
        part.score([episode("red ball 1 forward")], {UID: bare})
    with pytest.raises(DataError, match=r"problems of frozen_lake have no text in info\.mission"):
        demonstrations("frozen_lake", 1, 0, {}, "mission", "f")


def test_a_run(tmp_path, lake):
    """FrozenLake, whose map stands for the instruction: the real trainer, setup and commits."""
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.steps=2",
        "rlvr.reward={kind: ella, environment: frozen_lake, instruction: environment, config: {side: 3}}",
        "rlvr.reward.demonstrations=10", "rlvr.reward.epochs=2", "rlvr.reward.width=8",
    )  # fmt: skip
    made.run()
    values = [history for _, history in toys.history(tmp_path / "work")]
    assert all("reward_component/turn.ella" in v and v["method/ella/paid_turns"] >= 0 for v in values)
