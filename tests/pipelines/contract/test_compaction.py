"""Context compaction: where a summary is asked for, what rows are made, and that each token is what was drawn, as likely as it was."""

from __future__ import annotations

import pytest
import scripted
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.contract.asynchronous import Asynchronous
from pipelines.contract.compact import Compact
from pipelines.contract.episode import play
from pipelines.contract.rollout import GroupOutcome, RolloutContext
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data.records import Role, Stop
from pipelines.engine.sampler import TorchSampler

LAKE = {"environment": "frozen_lake", "map": ["SFF", "FFF", "FFG"]}
SHORT = {"prompt": "sum up", "resume": "so far:"}
PATH = ["right", "left", "right", "right", "down", "down"]
"""Reaches the goal."""


def asked(name="go", rollouts=1, **more):
    """A request whose prompt is rendered as a run's is."""
    request = scripted.request(name, rollouts, **LAKE, **more)
    request.prompt[:] = scripted.context(lambda prefix, number: "").render([request.problem.prompt])[0]
    return request


def walking(at_tokens, max_tokens=12, compact=None, **budget):
    """The rows of an episode that walks `PATH` and says "seen N" as its Nth summary, and the calls of the sampler."""
    said = {"moves": 0, "summaries": 0}

    def script(prefix, number):
        kind = "summaries" if prefix.endswith("sum up") or "sum up" in prefix.rsplit("seen", 1)[-1] else "moves"
        said[kind] += 1
        return f"seen {said[kind]}" if kind == "summaries" else PATH[said["moves"] - 1]

    context = scripted.context(script)
    compact = compact or Compact(at_tokens=at_tokens, max_tokens=max_tokens, **SHORT)
    rows = play([asked()], context, TurnBudget(9, compact=compact, **budget), split=True)
    return rows, context


def test_an_episode_goes_on_from_its_summary():
    length = len(asked().prompt)
    rows, context = walking(length + 60)
    whole, _ = walking(10_000)
    assert len(whole) == 1 and len(rows) > 1 and "episode" not in whole[0].extras
    assert sum(len(row.turn_reward) for row in rows) == len(PATH) + len(rows) - 1, (
        "each row but the last ends with a summary"
    )
    for number, row in enumerate(rows):
        texts = row.text.split(" | ")
        assert (texts[-1] == f"seen {number + 1}") == (number < len(rows) - 1)
        assert (row.score, row.correct, row.group, row.stop) == (1.0, True, 0, Stop.ENVIRONMENT), "all have the outcome"
        assert sum(row.turn_reward) == 1.0 and row.turn_reward[:-1] == [0.0] * (len(texts) - 1)
        assert row.extras == {"episode": 0} and len(row.turn_valid) == len(row.turn_observation) == len(row.turn_state)
    assert [each.components.get("summaries") for each in rows] == [None] * (len(rows) - 1) + [len(rows) - 1]
    prompts = [
        scripted.show([t for t, r in zip(row.tokens, row.role, strict=True) if r == Role.PROMPT]) for row in rows
    ]
    assert "so far:" not in prompts[0] and [f"go\n\nso far:\nseen {n}" in prompts[n] for n in range(1, len(rows))]
    assert {call.max_tokens for call in context.sampler.calls} == {8, 12}
    assert all(len(scripted.ids(p)) < length + 60 + 12 + 80 for call in context.sampler.calls for p in call.prefixes)


def test_summaries_are_no_turns_and_may_be_limited():
    rows, _ = walking(len(asked().prompt) + 1)
    assert len(rows) == len(PATH), "after every turn but the last"
    short, _ = walking(len(asked().prompt) + 1, compact=Compact(at_tokens=3, max_tokens=9, at_most=2, **SHORT))
    assert [row.stop for row in short] == [Stop.LENGTH] * 3 and {row.score for row in short} == {0.0}
    part, _ = walking(len(asked().prompt) + 60)
    few = play(
        [asked()],
        scripted.context(lambda prefix, number: "left"),
        TurnBudget(3, compact=Compact(at_tokens=3, max_tokens=9)),
    )
    assert len(few[0].turn_reward) == 3 + 2 and few[0].components["summaries"] == 2.0, (
        "none is asked for after the last turn"
    )
    assert few[0].max_tokens == 3 * 8 + 9 and part[0].turn_state[-1] not in part[0].turn_state[:-1]


def test_an_episode_counts_once_for_a_problem():
    rows, _ = walking(len(asked().prompt) + 1)
    assert GroupOutcome.of(7, rows) == GroupOutcome(7, 1, 1)
    lost = play([asked("lost", 2, group=1)], scripted.context(lambda prefix, number: "left"), TurnBudget(1))
    assert GroupOutcome.of(7, [*rows, *lost]) == GroupOutcome(7, 3, 1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return toys.model(vocab=len(scripted.tokenizer()))


@settings(max_examples=8, deadline=None)
@given(
    room=st.integers(1, 90), most=st.integers(1, 9), turn=st.integers(1, 6), turns=st.integers(1, 4),
    at_most=st.none() | st.integers(1, 2), asynchronous=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_hold_what_was_drawn_as_likely_as_the_model_finds_it(
    model, room, most, turn, turns, at_most, asynchronous, seed
):
    """Every token of the policy's in the rows, summaries too, is one that the sampler returned, after exactly the tokens before it."""
    own = TorchSampler(model, stop={scripted.tokenizer().eos_token_id}, pad=0)
    drawn = []

    class Recording:
        def extend(self, prefixes, *args, **settings):
            completions = own.extend(prefixes, *args, **settings)
            drawn.extend((tuple(p), tuple(c.tokens), tuple(c.logp)) for p, c in zip(prefixes, completions, strict=True))
            return completions

    sampling = Sampling(max_tokens=turn)
    context = RolloutContext(Recording(), sampling, 2, Streams(seed), False, version=0, tokenizer=scripted.tokenizer())
    requests = [asked("ab", 2), asked("c", 1, group=1)]
    compact = Compact(at_tokens=len(requests[0].prompt) + room, max_tokens=most, at_most=at_most, **SHORT)
    scheduler = Asynchronous(8, batch_invariant=True).play_out if asynchronous else None
    rows = play(requests, context, TurnBudget(turns, compact=compact), split=True, scheduler=scheduler)
    spoken = []
    for row in rows:
        with torch.no_grad():
            logp = model(torch.tensor([row.tokens])).logits[0].float().log_softmax(-1)
        for number in range(len(row.turn_state)):
            places = [place for place, each in enumerate(row.turn) if each == number]
            assert all(row.role[place] == Role.POLICY for place in places)
            tokens = tuple(row.tokens[places[0] : places[-1] + 1])
            spoken.append((tuple(row.tokens[: places[0]]), tokens, tuple(row.logp_old[places[0] : places[-1] + 1])))
            again = torch.stack([logp[place - 1, row.tokens[place]] for place in places])
            torch.testing.assert_close(torch.tensor(spoken[-1][2]), again, atol=1e-4, rtol=0)
    assert sorted(spoken) == sorted(each for each in drawn if each[1])
    assert all(len({row.score for row in rows if (row.group, row.extras.get("episode")) == key}) == 1
               for key in {(row.group, row.extras["episode"]) for row in rows if row.extras})  # fmt: skip
