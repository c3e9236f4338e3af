"""Games against a pool of opponents: rows, seats and payments, who draws what from where, and what each player reads."""

from __future__ import annotations

import dataclasses
import re

import pytest
import scripted

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.opponents import draw, pool_of
from pipelines.contract.streams import Streams
from pipelines.data.records import Role, Stop
from pipelines.engine.models import train_tokenizer
from pipelines.papers.spiral import kuhn_poker, tic_tac_toe


class Frozen:
    """A model that a pool names, whose sampler follows a script; its tokenizer has ids of its own."""

    def __init__(self, script, system_prompt=None):
        self.tokenizer = train_tokenizer("char", 64, ["You are XO.\n123456789Play well"])
        self.script, self.system_prompt, self.read, self.sampler = script, system_prompt, [], self

    def extend(self, prefixes, sampling, generator, *, entropy=False, streams=None):
        assert not entropy and len({*streams}) == len(prefixes)
        texts = [self.tokenizer.decode(list(prefix), skip_special_tokens=True) for prefix in prefixes]
        self.read += texts
        own = [
            self.tokenizer(self.script(text, i), add_special_tokens=False)["input_ids"] for i, text in enumerate(texts)
        ]
        completions = scripted.Sampler(lambda text, i: "1").extend(prefixes, sampling, generator)
        end = self.tokenizer.eos_token_id
        return [
            dataclasses.replace(each, tokens=[*ids, end], logp=[0.0] * (len(ids) + 1))
            for each, ids in zip(completions, own, strict=True)
        ]

    def language_model(self, path):
        return self


def first_free(prefix, number):
    """The lowest free square of the last board."""
    return re.findall(r"[1-9]", prefix.rsplit("You are", 1)[-1])[0]


def request_of(row, group=0, rollouts=1):
    request = scripted.request("", rollouts, group=group, **row["info"])
    [prompt] = scripted.context(first_free).render([row["prompt"]])
    return dataclasses.replace(
        request, prompt=prompt, problem=dataclasses.replace(request.problem, prompt=row["prompt"])
    )


def played(row, pool, *, frozen=None, script=first_free, groups=range(20), rollouts=1, seed=0, **settings):
    """Rows of games of one problem, in the groups."""
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 5, "opponents": pool, **settings}).fn
    if frozen is not None:
        rollout.connect(frozen)
    context = dataclasses.replace(scripted.context(script, seed=seed), prompts=1000)
    return rollout.run([request_of(row, group, rollouts) for group in groups], context)


def empty_board():
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    return row


def test_the_policy_s_seat_has_the_only_row():
    """Either seat comes about; the opponent's moves are observations, and no token of its own is in a row."""
    frozen = Frozen(first_free)
    rows = played(empty_board(), ["./old/model"], frozen=frozen, groups=range(12))
    assert [row.group for row in rows] == list(range(12)) and {row.player for row in rows} == {0, 1}
    for row in rows:
        said = scripted.parts(row)
        own = [text for role, text in said if role == Role.POLICY]
        shown = [text for role, text in said if role == Role.ENVIRONMENT]
        assert own == (["1", "3", "5", "7"] if row.player == 0 else ["2", "4", "6"])
        assert row.score == (1.0 if row.player == 0 else -1.0) == sum(row.turn_reward)
        assert row.correct is (row.player == 0) and row.stop == Stop.ENVIRONMENT and row.opponent == "model"
        mark = "XO"[row.player]
        assert row.prompt == [{"role": "user", "content": f"You are {mark}.\n{'X' if row.player else '1'}23\n456\n789"}]
        assert all(f"You are {mark}." in text for text in shown)
        assert [
            value for value, role in zip(row.logp_old, row.role, strict=True) if role != Role.POLICY and value
        ] == []
    assert any("You are O.\nX23" in text for text in frozen.read) and any(
        "You are X.\n123" in text for text in frozen.read
    )


def test_the_last_move_pays_whoever_makes_it():
    """The payments are those that the game itself makes of the moves: won, lost and drawn games, and messages that are no moves."""
    for script in (first_free, lambda prefix, number: "x"):
        for opponent in ("random", "perfect"):
            for row in played(empty_board(), [opponent], script=script, groups=range(20), rollouts=2):
                faults = row.components["invalid_turns"]
                assert row.score in ((-1.0,) if faults else (-1.0, 0.0, 1.0))
                assert row.correct is (row.score > 0) and row.turn_reward[:-1] == [0.0] * (len(row.turn_reward) - 1)
                assert opponent != "perfect" or row.score <= 0
    rows = played(empty_board(), ["./old"], frozen=Frozen(lambda text, i: "x"), groups=range(12))
    assert {row.player for row in rows} == {0}, "as the second player the policy has no turn, and no row"
    assert {(row.score, row.correct) for row in rows} == {(0.0, False)}, "an opponent's fault loses it the game"


def test_a_group_has_one_opponent_and_one_seat_and_draws_them_from_the_seed_alone():
    pool = ["policy", "random", {"player": "perfect", "weight": 2}]
    rows = played(empty_board(), pool, groups=range(30), rollouts=3)
    drawn = {group: {(row.opponent, row.player) for row in rows if row.group == group} for group in range(30)}
    assert all(len(each) == 1 for each in drawn.values()), "what a group's rewards differ by is the policy's doing"
    assert {name for each in drawn.values() for name, _ in each} == {None, "random", "perfect"}
    mirrored = {row.group for row in rows if row.group >= 1000}
    assert {group - 1000 for group in mirrored} == {group for group, each in drawn.items() if (None, 0) in each}
    alone = played(empty_board(), pool, groups=[7, 3], rollouts=3)
    assert [row.to_plain() for row in alone] == [
        row.to_plain() for group in (7, 3) for row in rows if row.group % 1000 == group
    ], "whoever draws a group, and whatever else is drawn, it is the same"
    other = played(empty_board(), pool, groups=range(30), rollouts=3, seed=1)
    assert {group: {(row.opponent, row.player) for row in other if row.group == group} for group in range(30)} != drawn


def test_weights_are_chances():
    pool = pool_of([{"player": "policy", "weight": 3}, "random"])
    drawn = [draw(pool, 2, Streams(0, step).key, group) for step in range(20) for group in range(100)]
    share = sum(each.is_policy for each, _ in drawn) / len(drawn)
    assert abs(share - 0.75) < 0.03 and abs(sum(seat for _, seat in drawn) / len(drawn) - 0.5) < 0.04


def test_a_model_reads_its_own_seat_with_its_own_tokenizer_and_system_prompt():
    frozen = Frozen(first_free, system_prompt="Play well")
    played(empty_board(), ["./old"], frozen=frozen, groups=range(6))
    assert all(text.count("Play well") == 1 for text in frozen.read)
    longest = max(frozen.read, key=len)
    assert longest.count("You are") >= 3 and len(set(re.findall("You are [XO]", longest))) == 1
    assert frozen.tokenizer.get_vocab() != scripted.tokenizer().get_vocab()


def test_copies_of_the_policy_are_taken_every_so_many_updates_and_the_newest_kept():
    """The copies are drawn evenly; a league that goes on from the state plays the same games."""

    class Policy:
        """Counts the copies: the one after n others says the n-th free square first."""

        def __init__(self):
            self.taken = 0

        def earlier(self):
            return self

        def player(self, weights=None):
            self.taken += weights is None
            number = self.taken - 1 if weights is None else weights["number"]
            player = Frozen(lambda text, i: (re.findall("[1-9]", text.rsplit("You are", 1)[-1]) * 9)[number])
            player.weights = {"number": number}
            return player

    def run(rollout, version):
        context = dataclasses.replace(scripted.context(first_free), prompts=1000, version=version)
        return rollout.run([request_of(empty_board(), group) for group in range(30)], context)

    spec = {"kind": "multi_turn", "max_turns": 5, "opponents": [{"player": "past", "every": 2, "copies": 2}]}
    rollout = bind("rlvr.rollout", spec).fn
    rollout.connect(Policy())
    rows = [run(rollout, version) for version in range(6)]
    assert rollout.asks_policy and [version for version, _ in rollout.league.copies] == [2, 4]
    assert {row.opponent for row in rows[0]} == {"past"}
    firsts = {scripted.show(row.tokens).split("You are O.")[1][:4] for row in rows[5] if row.player == 1}
    assert firsts == {"\n1X3", "\n12X"}, "each of the two copies that are kept has begun a game"
    again = bind("rlvr.rollout", spec).fn
    again.connect(Policy())
    again.load_state_dict(rollout.state_dict())
    assert [row.to_plain() for row in run(again, 5)] == [row.to_plain() for row in rows[5]]


def test_a_copy_of_the_policy_is_told_the_policy_s_system_prompt():
    class Policy(Frozen):
        weights = None

        def earlier(self):
            return self

        def player(self, weights=None):
            return self

    copy = Policy(first_free)
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 5, "opponents": ["past"]}).fn
    rollout.connect(copy)
    requests = [dataclasses.replace(request_of(empty_board(), g), system_prompt="Play well") for g in range(4)]
    rollout.run(requests, dataclasses.replace(scripted.context(first_free), prompts=1000))
    assert copy.read and all(text.count("Play well") == 1 for text in copy.read)


def test_opponents_see_nothing_of_the_other_s_card_and_deals_differ_as_in_self_play():
    bets = []

    def says(prefix, number):
        bets.append(prefix)
        return re.findall(r"Answer (\w+) or (\w+)", prefix)[-1][1]

    row = next(iter(kuhn_poker.problems(1, 0, opponent="policy")))
    rows = played(row, ["random", "perfect"], script=says, groups=range(20), max_turns=2)
    cards = row["info"]["cards"]
    for each in rows:
        assert f"You hold {cards[each.player]}." in scripted.show(each.tokens)
        assert f"You hold {cards[1 - each.player]}." not in scripted.show(each.tokens)
    assert {each.score for each in rows} >= {-1.0, 1.0} or len({each.score for each in rows}) > 1


def test_a_lost_environment_leaves_the_row_unscored(monkeypatch):
    step = tic_tac_toe.World.step

    def fails_at_the_third(self, message):
        if len(self.moves) == 2:
            raise environments.Unavailable
        return step(self, message)

    monkeypatch.setattr(tic_tac_toe.World, "step", fails_at_the_third)
    rows = played(empty_board(), ["random"], groups=range(8))
    assert {(row.player, row.stop, row.score, row.status) for row in rows} == {
        (seat, Stop.ERROR, None, "environment_failed") for seat in (0, 1)
    }


def test_a_problem_with_a_fixed_opponent_is_played_as_ever():
    [row] = tic_tac_toe.problems(1, 0, opponent="perfect", opening=0)
    rows = played(row, ["random"], groups=range(4))
    plain = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 5}).fn
    context = dataclasses.replace(scripted.context(first_free), prompts=1000)
    assert [each.to_plain() for each in rows] == [
        each.to_plain() for each in plain.run([request_of(row, group) for group in range(4)], context)
    ]


def test_budgets_and_repetitions_hold_for_the_policy_alone():
    rows = played(empty_board(), ["random"], groups=range(6), max_turns=1, remind=True)
    assert {len(row.turn_reward) for row in rows} == {1} and Stop.TURNS in {row.stop for row in rows}
    again = played(empty_board(), ["perfect"], groups=range(4), rollouts=2, regenerate=2, invalid_cost=0.5)
    assert {row.components["attempts"] for row in again} == {3.0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponents": ["policy"]}, "rlvr.rollout.opponents: the policy alone"),
        ({"opponents": ["random"], "asynchronous": True}, "opponents take theirs together.*Leave asynchronous out"),
        (
            {"opponents": [{"player": "random", "name": "a"}, {"player": "perfect", "name": "a"}]},
            "two opponents have one name",
        ),
        ({"opponents": ["policy", {"player": "random", "copies": 2}]}, "settings of one entry, the player past"),
        (
            {"opponents": ["past", {"player": "past", "copies": 2, "name": "b"}]},
            "settings of one entry, the player past",
        ),
        ({"opponents": []}, "rlvr.rollout.opponents"),
        ({"opponents": [{"player": "random", "weight": 0}]}, "rlvr.rollout.opponents"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(RecipeError, match=words):
        bind("rlvr.rollout", {"kind": "multi_turn", **settings})
