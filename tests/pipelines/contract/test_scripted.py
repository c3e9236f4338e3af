"""Episodes without a model: experts reach the end that rollouts reward, seats read what is theirs, limits are kept."""

from __future__ import annotations

import agents
import pytest
import scripted as sampled

from pipelines import environments
from pipelines.contract import scripted
from pipelines.contract.episode import play
from pipelines.contract.turn_budget import TurnBudget

ELSEWHERE = {"agent", "minigrid", "openenv", "textarena", "verifiers_package", "verifiers_v1"}
"""They need a program, a server or a package that are not here, or have no expert."""
WITHOUT_SUCCESS = {"circle_packing"}
"""Its demonstrations are edits of programs, which `rollout: theta_evolve` applies."""
OURS = sorted({*environments.known()} - ELSEWHERE)


def sample(name, seed=0, max_turns=30, **config):
    problem, actor, _ = scripted.cast_for(name, seed, config)
    return scripted.play(problem, actor, max_turns=max_turns, seed=seed)


@pytest.mark.parametrize("name", OURS)
def test_an_expert_ends_its_episode_and_succeeds(name):
    played = sample(name)
    assert played.end == "environment" and played == sample(name)
    assert all(outcome.success for outcome in played.outcomes) or name in WITHOUT_SUCCESS


@pytest.mark.parametrize("name", ["frozen_lake", "guess_number", "sokoban", "tools"])
def test_it_is_the_episode_of_rollouts(name):
    """The same messages through a sampler with a real tokenizer: same observations, rewards and score."""
    problem, actor, _ = scripted.cast_for(name, 3, {})
    played = scripted.play(problem, actor, max_turns=30, seed=3)
    said = iter([turn.says for turn in played.turns])
    request = sampled.request(problem.prompt[0]["content"], 1, answer=problem.answer, **problem.info)
    [row] = play([request], sampled.context(lambda *_: next(said), max_tokens=200), TurnBudget(30))
    reads = ["\n".join(m["content"] for m in turn.reads) for turn in played.turns[1:]]
    assert row.turn_observation == [*reads, played.last]
    assert row.turn_reward == [turn.reward for turn in played.turns]
    assert (row.score, row.correct) == (played.outcomes[0].score, played.outcomes[0].success)


@pytest.mark.parametrize("game", ["tic_tac_toe", "kuhn_poker"])
def test_each_seat_reads_its_own_conversation(game):
    played = sample(game, opponent="policy")
    assert {turn.seat for turn in played.turns} == {0, 1} == {outcome.seat for outcome in played.outcomes}
    assert sum(outcome.score for outcome in played.outcomes) == 0
    first = {seat: next(turn for turn in played.turns if turn.seat == seat).reads[0]["content"] for seat in (0, 1)}
    assert first[0] != first[1]


def test_a_limit_of_turns_ends_it_and_so_does_the_end_of_the_messages():
    problem, actor, _ = scripted.cast_for("frozen_lake", 0, {})
    cut = scripted.play(problem, actor, max_turns=1, seed=0)
    assert (cut.end, len(cut.turns), cut.outcomes[0].success) == ("turn limit", 1, False) and cut.last
    silent = scripted.play(problem, scripted.saying(["", "dance"]), max_turns=9, seed=0)
    assert silent.end == "no more messages" and [turn.valid for turn in silent.turns] == [False, False]
    assert scripted.play(problem, scripted.saying([]), max_turns=9, seed=0).turns == []


def test_an_expert_whose_problems_are_others_shows_the_first_of_its_own():
    problem, _, who = scripted.cast_for("circle_packing", 0, {})
    assert who == "demonstration" and "# 0." in problem.prompt[0]["content"]


def test_a_program_plays_too(tmp_path):
    config = {
        "command": agents.program(tmp_path, agents.ADDING),
        "tasks": agents.tasks(tmp_path, {"task": "1 + 2", "answer": "the answer is\n3"}),
    }
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    problem, actor, who = scripted.cast_for("agent", 0, config, [call, "3"])
    played = scripted.play(problem, actor, max_turns=5, seed=0)
    assert who == "given" and played.end == "environment"
    assert [message["role"] for message in played.turns[1].reads] == ["tool"]
    assert scripted.cast_for("agent", 0, config)[2] == "nobody", "without `expert` it has no demonstrations"
