"""A round robin: games are played as the environment has them, from the same openings, and a model reads what it does in training."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scripted

from evaluation import tournament
from pipelines import environments
from pipelines.base.errors import UserError
from pipelines.contract.episode import play
from pipelines.contract.rollout import RolloutRequest
from pipelines.contract.sampling import Sampling
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import marks


def first_free(prefix: str, _: int) -> str:
    """The first free square of the last board that was shown."""
    return re.findall(r"\d", prefix.rpartition("You are ")[2])[0]


class Speaker:
    """What `ModelPlayer` needs of a model."""

    def __init__(self, script=first_free):
        self.sampler, self.tokenizer = scripted.Sampler(script), scripted.tokenizer()


def model(name="scripted", script=first_free, system_prompt=None):
    return tournament.ModelPlayer(name, Speaker(script), Sampling(max_tokens=4), 0, system_prompt)


def fixed(name):
    return tournament.FixedPlayer(name, 0)


def held(names, player, game="tic_tac_toe", games=2, size=20, **config):
    starts = tournament.openings(game, {"opening": 2, **config} if game == "tic_tac_toe" else config, size, 1)
    return starts, tournament.hold(game, starts, names, player, games=games)


def test_everybody_meets_everybody_from_every_opening_in_both_seats():
    starts, standings = held(
        ["random", "perfect", "scripted"], lambda name: model() if name == "scripted" else fixed(name)
    )
    assert len(starts) == 20 and len(standings.games) == 3 * 20 * 2
    for place, pair in enumerate(standings.pairs):
        games = standings.games[place * 40 : place * 40 + 40]
        assert {frozenset(game["seats"].values()) for game in games} == {frozenset((pair["first"], pair["second"]))}
        for start in starts:
            own = [game for game in games if game["opening"] == start.uid]
            assert sorted(game["seats"]["0"] for game in own) == sorted((pair["first"], pair["second"]))
    assert standings.ratings[0].name == "perfect"


def test_points_are_of_what_the_seats_are_paid():
    _, standings = held(["perfect", "random"], fixed)
    points = [0.5 + 0.5 * np.sign(paid[own] - paid[1 - own]) for own, paid in map(_of_first, standings.games)]
    [pair] = standings.pairs
    assert pair["value"] == pytest.approx(np.mean(points)) and pair["n"] == 20 and pair["games"] == 40
    assert pair["low"] < pair["value"] <= pair["high"] and pair["faults"] == {"perfect": 0, "random": 0}
    assert pair["paid"] == pytest.approx(np.mean([paid[own] for own, paid in map(_of_first, standings.games)]))


def _of_first(game):
    return (0 if game["seats"]["0"] == "perfect" else 1), [game["paid"]["0"], game["paid"]["1"]]


def test_moves_are_those_of_the_environment():
    """Replayed message by message, a game pays what its row says."""
    starts, standings = held(["random", "scripted"], lambda name: model() if name == "scripted" else fixed(name))
    problems = {start.uid: start for start in starts}
    for game in standings.games:
        world = environments.make("tic_tac_toe")
        world.reset(problems[game["opening"]])
        paid = {"0": 0.0, "1": 0.0}
        for move in game["moves"]:
            assert (world.mover, world.observation(world.mover)) == (move["seat"], move["reads"])
            assert game["seats"][str(move["seat"])] == move["player"]
            step = world.step(move["says"])
            paid[str(move["seat"])] += step.reward
            for seat, other in step.others.items():
                paid[str(seat)] += other
        assert step.done and paid == game["paid"]


def test_a_model_reads_what_it_reads_in_training():
    """Two players of the same script have the tokens of the two seats of self-play."""
    [start, *_] = tournament.openings("tic_tac_toe", {"opening": 2}, 20, 1)
    context = scripted.context(first_free, max_tokens=4)
    [prompt] = context.render([start.prompt])
    rows = play([RolloutRequest(start, prompt, 0, 1)], context, TurnBudget(10))
    players = (model("a"), model("b"))
    game = tournament._begun("tic_tac_toe", start, 0, 0, players, 0)
    tournament._play([game], players)
    assert {row.player: row.tokens for row in rows} == {place: seat.tokens for place, seat in game.seats.items()}
    assert {row.player: row.score for row in rows} == {place: seat.paid for place, seat in game.seats.items()}


@pytest.mark.parametrize("shows", [True, False])
def test_texts_of_a_game_name_images_only_where_it_shows_some(shows, monkeypatch):
    module = environments.module("tic_tac_toe")
    monkeypatch.setattr(module, "SHOWS_IMAGES", shows)
    board, named = module.World.observation, marks.mark("a" * 32)
    monkeypatch.setattr(module.World, "observation", lambda self, seat: f"{named} {board(self, seat)}")
    opening = tournament.openings("tic_tac_toe", {"opening": 2}, 4, 1)[0]
    game = tournament._begun("tic_tac_toe", opening, 0, 0, (fixed("random"), fixed("perfect")), 0)
    assert marks.marked(game.observation()) == (["a" * 32] if shows else [])
    assert bool(marks.marked(str(game.opening_messages()))) == shows


def test_a_system_prompt_begins_each_seats_conversation():
    player = model(system_prompt="Play well.")
    held(["scripted", "random"], lambda name: player if name == "scripted" else fixed(name), size=4)
    assert all(prefix.count("Play well.") == 1 for call in player.context.sampler.calls for prefix in call.prefixes)


@pytest.mark.parametrize("says", ["hm", "", "99999"])
def test_a_message_that_is_no_legal_move_loses(says):
    _, standings = held(
        ["random", "scripted"], lambda name: model(script=lambda *_: says) if name == "scripted" else fixed(name)
    )
    [pair] = standings.pairs
    assert pair["value"] == 1 and pair["faults"]["scripted"] > 0
    worst = standings.ratings[-1]
    assert worst.name == "scripted" and worst.low is None and worst.high < 0


def test_the_same_seed_has_the_same_games():
    first, second = (held(["random", "perfect"], fixed, game="kuhn_poker", games=4)[1] for _ in range(2))
    assert first == second
    hands = {game["moves"][0]["reads"] for game in first.games}
    assert len(hands) > 1 and all(abs(pair["paid"]) <= 2 for pair in first.pairs)


def test_openings_are_different():
    starts = tournament.openings("tic_tac_toe", {"opening": 1}, 500, 3)
    assert len(starts) == 10, "the empty board and nine first moves"


@pytest.mark.parametrize(
    ("game", "config", "says"),
    [
        ("frozen_lake", {}, "has no players. Those that have: .*tic_tac_toe"),
        ("tic_tac_toes", {}, "no such environment. Did you mean 'tic_tac_toe'"),
        ("tic_tac_toe", {"opening": 0}, "a single opening"),
    ],
)
def test_what_is_no_tournament_is_refused(game, config, says):
    with pytest.raises(UserError, match=says):
        tournament.openings(game, config, 10, 0)


def test_a_game_without_an_exact_player_says_so(monkeypatch):
    class Simple:
        seats, mover = (0, 1), 0

        def legal(self):
            return ["a"]

    monkeypatch.setattr(environments.module("tic_tac_toe"), "World", Simple)
    tournament.check_fixed("tic_tac_toe", "random")
    with pytest.raises(UserError, match=r"needs best\(\)"):
        tournament.check_fixed("tic_tac_toe", "perfect")
