"""Episodes that do not wait for each other: the rows of lockstep whatever the timing, stragglers cut, nothing left waiting."""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import replace

import pytest
import scripted
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.contract.asynchronous import Asynchronous
from pipelines.contract.catalogue import bind
from pipelines.contract.episode import play_out, seated, take_turns
from pipelines.contract.episode import waiting as waiting_for_policy
from pipelines.contract.rollout import RolloutContext
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data.records import Role, Stop
from pipelines.engine.sampler import TorchSampler
from pipelines.environments import _stepping, frozen_lake

LAKE = {"environment": "frozen_lake", "map": ["SFF", "FFF", "FFG"]}
NAMES = ("ab", "c", "defgh")
step = frozen_lake.World.step


def requests(*names, rollouts=2):
    return [scripted.request(name, rollouts, group=i, **LAKE) for i, name in enumerate(names)]


@pytest.fixture
def waiting(monkeypatch):
    """Has worlds wait: `waiting(delay)` makes their steps sleep for `delay(message)` seconds, and returns how many step at once."""

    def begin(delay):
        under_way, peak = [0], [0]

        def slow(world, message):
            under_way[0] += 1
            peak[0] = max(peak[0], under_way[0])
            time.sleep(delay(message))
            under_way[0] -= 1
            return step(world, message)

        monkeypatch.setattr(frozen_lake.World, "waits", True)
        monkeypatch.setattr(frozen_lake.World, "step", slow)
        return peak

    return begin


@pytest.fixture(scope="module")
def sampler():
    """A little model with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=len(scripted.tokenizer()),
        max_position_embeddings=256,
    )  # fmt: skip
    return TorchSampler(LlamaForCausalLM(config), stop=[scripted.tokenizer().eos_token_id], pad=0)


def context(sampler):
    return RolloutContext(
        sampler, Sampling(max_tokens=6), 3, Streams(7), True, version=0, tokenizer=scripted.tokenizer()
    )


def in_lockstep(sampler):
    """What the little model plays where each turn waits for all, every token drawn from its episode's own stream."""
    played = context(sampler)
    episodes = [seated(each, played)[0] for each in requests(*NAMES) for _ in range(2)]
    streams = {id(e): played.streams.new(e.request.group) for e in episodes}
    while active := waiting_for_policy(episodes, TurnBudget(3)):
        places = [(streams[id(e)], e.role.count(int(Role.POLICY))) for e in active]
        completions = played.extend([e.context for e in active], [0 for _ in active], streams=places)
        take_turns(active, completions, played, budget=TurnBudget(3))
    return [e.trajectory(played, 3) for e in episodes]


def test_timing_changes_no_row(sampler, waiting):
    """Tokens and rewards are those of lockstep; log-probabilities too, up to the rounding of another batch, or to the bit."""
    lockstep, alone = in_lockstep(sampler), []
    for seed, settings in enumerate(({}, {"batch_invariant": True}, {"max_concurrent": 2, "batch_invariant": True})):
        table = random.Random(seed)
        waiting(lambda message, table=table: table.random() * 0.02)
        rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 3, "asynchronous": True, **settings}).fn
        played = rollout.run(requests(*NAMES), context(sampler))
        for mine, theirs in zip(played, lockstep, strict=True):
            rounded = theirs.logp_old, theirs.entropy_old
            assert mine.logp_old == pytest.approx(rounded[0], abs=1e-5)
            assert replace(mine, logp_old=rounded[0], entropy_old=rounded[1]) == theirs
        assert 0 < rollout.metrics()["time/rollout_idle_share"] < 1
        assert rollout.repeatable == bool(settings)
        alone += [played] if settings else []
    assert alone[0] == alone[1], "bits too, where every turn is decoded by itself"


def test_fast_episodes_pass_a_slow_one(waiting):
    """One episode's first step lasts; the others have ended by then, and the sampler was asked for what waited."""
    ended = []
    waiting(lambda message: 0.5 if message == "left" else 0.0)

    def script(prefix, number):
        ended.append(prefix[0])
        return "left" if prefix == "s" else "right"

    scripts = scripted.context(script)
    [slow, fast] = Asynchronous(8).play_out(requests("s", "f", rollouts=1), scripts, TurnBudget(3))
    assert ended == ["s", "f", "f", "f", "s", "s"] and [len(e.states) for e in (slow, fast)] == [3, 3]
    assert scripts.sampler.calls[0].prefixes == ["s", "f"], "both wait for the policy at the start"


def test_no_more_than_max_concurrent_are_under_way(waiting):
    peak = waiting(lambda message: 0.01)
    scripts = scripted.context(lambda prefix, number: "right")
    episodes = Asynchronous(3).play_out(requests("a", "b", rollouts=4), scripts, TurnBudget(2))
    assert len(episodes) == 8 and peak[0] == 3 and max(len(call.prefixes) for call in scripts.sampler.calls) == 3


def test_a_straggler_is_cut_and_its_group_stays_whole(waiting):
    waiting(lambda message: 30.0 if message == "left" else 0.0)
    scripts = scripted.context(lambda prefix, number: "left" if (prefix, number) == ("a", 1) else "right")
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 2, "asynchronous": True, "time_limit_s": 0.4}).fn
    began = time.monotonic()
    played = rollout.run(requests("a", rollouts=3), scripts)
    assert time.monotonic() - began < 5
    assert [(row.group, row.status, row.score, row.stop) for row in played] == [
        (0, "incorrect", 0.0, Stop.TURNS), (0, "episode_timed_out", None, Stop.ERROR), (0, "incorrect", 0.0, Stop.TURNS),
    ]  # fmt: skip
    assert played[1].turn_reward == [0.0] and max(played[1].turn) == 0, "its turn is there, and pays nothing"


def test_a_late_step_is_not_a_late_episode(waiting, monkeypatch):
    waiting(lambda message: 30.0)
    monkeypatch.setattr(_stepping, "STEP_S", 0.1)
    scripts = scripted.context(lambda prefix, number: "right")
    [episode] = Asynchronous(1, 20.0).play_out(requests("a", rollouts=1), scripts, TurnBudget(2))
    assert episode.status == "environment_timed_out"


def test_an_answer_that_came_while_the_sampler_decoded_is_not_late(waiting, monkeypatch):
    waiting(lambda message: 0.0)
    monkeypatch.setattr(_stepping, "STEP_S", 0.15)
    scripts = scripted.context(lambda prefix, number: time.sleep(0.2) or "right")
    episodes = Asynchronous(4, None, True).play_out(requests("a", rollouts=3), scripts, TurnBudget(2))
    assert [(e.status, len(e.states)) for e in episodes] == [("", 2)] * 3


def test_an_episode_whose_time_is_over_asks_for_no_turn(waiting):
    waiting(lambda message: 0.2)
    scripts = scripted.context(lambda prefix, number: time.sleep(0.1) or "right")
    episodes = Asynchronous(4, 0.15, True).play_out(requests("a", rollouts=4), scripts, TurnBudget(5))
    assert {e.status for e in episodes} == {"episode_timed_out"} and all(
        len(e.rewards) == len(e.states) for e in episodes
    )


@pytest.mark.parametrize("waits", [True, False])
def test_a_bug_of_a_world_is_not_hidden(waiting, monkeypatch, waits):
    waiting(lambda message: {}[message])
    monkeypatch.setattr(frozen_lake.World, "waits", waits)
    with pytest.raises(KeyError):
        Asynchronous(2).play_out(requests("a"), scripted.context(lambda prefix, number: "up"), TurnBudget(2))


class Concurrent(scripted.Sampler):
    """A server's: each turn is sent by a thread of its own as soon as it is wanted."""

    concurrent = True
    slow_s = 0.0

    def extend(self, prefixes, *arguments, **options):
        assert threading.current_thread() is not threading.main_thread() and len(prefixes) == 1
        time.sleep(self.slow_s)
        return super().extend(prefixes, *arguments, **options)


def test_a_concurrent_sampler_is_sent_each_turn_at_once(waiting):
    waiting(lambda message: 0.02)
    scripts = scripted.context(lambda prefix, number: "right")
    scripts.sampler.__class__ = Concurrent
    scheduler = Asynchronous(8)
    episodes = scheduler.play_out(requests("a", "b"), scripts, TurnBudget(3))
    assert [len(e.states) for e in episodes] == [3] * 4 and len(scripts.sampler.calls) == 12
    assert 0 < scheduler.take_idle_share() <= 1 and scheduler.take_idle_share() is None
    scripts.sampler.slow_s = 30.0
    began = time.monotonic()
    late = Asynchronous(8, 0.2).play_out(requests("a"), scripts, TurnBudget(3))
    assert [e.status for e in late] == ["episode_timed_out"] * 2 and time.monotonic() - began < 5
    assert [e.trajectory(scripts, 3).stop for e in late] == [Stop.ERROR] * 2, "rows without a turn"


def test_what_a_concurrent_sampler_raises_ends_the_rollouts():
    scripts = scripted.context(lambda prefix, number: {}[prefix])
    scripts.sampler.__class__ = Concurrent
    with pytest.raises(KeyError):
        Asynchronous(8).play_out(requests("a"), scripts, TurnBudget(3))


def test_both_seats_of_a_game_are_played():
    """Of a game with two seats one is waited for at a time, and its rows are those of lockstep, seat by seat."""
    game = scripted.request("game", 2, environment="tic_tac_toe", seats=[0, 1], seed=0)

    def move(prefix, number):
        """The first free square of the board that was shown last."""
        squares = "".join(re.findall(r"^[1-9XO]{3}$", prefix, re.MULTILINE)[-3:]) or "5"
        return min(re.findall(r"\d", squares))

    play = [
        scheduler([game], scripted.context(move), TurnBudget(5)) for scheduler in (play_out, Asynchronous(2).play_out)
    ]
    assert [(e.player, e.texts, e.rewards, e.stop) for e in play[0]] == [
        (e.player, e.texts, e.rewards, e.stop) for e in play[1]
    ]
    assert {e.player for e in play[1]} == {0, 1} and min(len(e.states) for e in play[1]) > 1
