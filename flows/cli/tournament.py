"""`whetstone tournament`: models play a game with each other and with fixed players, and are rated."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.arguments import integer
from flows.cli.export import MODEL
from flows.cli.tables import aligned

if TYPE_CHECKING:
    from evaluation.ratings import Rating
    from evaluation.tournament import Player, Standings

ENOUGH = 30
"""Openings from which on intervals cover what they say, by tests/evaluation/test_ratings.py."""
LOADED = 2
"""Models in memory at once: those of one pairing."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = f"{parser.description}; everybody plays everybody from the same openings, in both seats"
    parser.add_argument(
        "game", help="an environment with players, such as tic_tac_toe, or FILE.py or MODULE:NAME of your own"
    )
    parser.add_argument(
        "players", nargs="+", metavar="PLAYER",
        help=f"{MODEL}, a folder in Hugging Face's format, or random or perfect; the first one's rating is 0",
    )  # fmt: skip
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="SETTING=VALUE", help="a setting of the game"
    )
    parser.add_argument(
        "--openings", type=integer(2, 100_000), default=100, help="at most so many different ones (100)"
    )
    parser.add_argument(
        "--games", type=integer(2, 10_000), default=4, help="of each two players from an opening, an even number (4)"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="of models' messages; 0 is greedy (1.0)")
    parser.add_argument("--max-tokens", type=integer(1), default=16, help="of a model's message (16)")
    parser.add_argument("--seed", type=integer(0, 2**62), default=10_000, help="of openings and draws (10000)")
    parser.add_argument("--confidence", type=float, default=0.95, help="level of the intervals (0.95)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write every game there, one JSON object a line")
    parser.add_argument("--json", action="store_true", help="for machines: ratings and pairings as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Hold the tournament, and print its standings."""
    from evaluation import tournament
    from flows.cli.environments import configured
    from flows.progress import Status
    from pipelines.base.errors import UserError
    from pipelines.base.files import write_atomic
    from tasks.preflight import check as preflight

    names = _names(arguments)
    preflight.summary_file(arguments.log and str(arguments.log), "--log")
    about, config = configured(arguments.game, arguments.settings)
    if "opponent" in (config or {}):
        raise UserError(
            "--set opponent", "both seats are the players'", "Leave it out, and name random or perfect as a player."
        )
    starts = tournament.openings(about["name"], config or {}, arguments.openings, arguments.seed)
    for name in names:
        if name in tournament.FIXED:
            tournament.check_fixed(about["name"], name, config)
    with Status(quiet=arguments.json) as status:
        cast = _Cast(arguments, status)
        for name in names:
            cast.check(name)
        standings = tournament.hold(
            about["name"], starts, names, cast.player, games=arguments.games, seed=arguments.seed,
            confidence=arguments.confidence, progress=lambda done, total: status(f"{done} of {total} pairings"),
        )  # fmt: skip
    if arguments.log:
        lines = "".join(json.dumps(game, ensure_ascii=False) + "\n" for game in standings.games)
        write_atomic(arguments.log, lines, durable=False)
    if arguments.json:
        rated = [asdict(each) for each in standings.ratings]
        about_games = {"game": about["name"], "openings": len(starts), "games": arguments.games}
        print(json.dumps({**about_games, "ratings": rated, "pairs": standings.pairs}, indent=1))
        return 0
    print("\n".join(table(standings, names[0], len(starts), arguments.games)))
    if arguments.log:
        print(f"\ngames: {arguments.log.resolve()}")
    return 0


def _names(arguments: argparse.Namespace) -> list[str]:
    """The players.

    Raises:
        UserError: fewer than two or one twice, an odd number of games, or a level that is none.
    """
    from pipelines.base.errors import UserError

    names = list(arguments.players)
    if len(names) < 2:
        raise UserError("PLAYER", "a tournament has two players or more", "Name another one, such as random.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(twice, "this player is named twice", "Name each once: its games with itself say nothing.")
    if arguments.games % 2:
        raise UserError(
            "--games", f"{arguments.games} is odd, and seats are shared equally", f"Use {arguments.games + 1}."
        )
    if not 0 < arguments.confidence < 1:
        raise UserError("--confidence", f"{arguments.confidence} is not between 0 and 1", "Use 0.95.")
    return names


class _Cast:
    """Loads players as they are asked for, and keeps the models of the last pairing."""

    def __init__(self, arguments: argparse.Namespace, status: Any) -> None:
        from tasks.export import conversation

        self.seed, self.status = arguments.seed, status
        self.sampling = conversation.sampling_of(temperature=arguments.temperature, max_tokens=arguments.max_tokens)
        self.loaded: dict[str, Player] = {}

    def check(self, name: str) -> None:
        """Refuse a model that cannot be had before any game is played."""
        from evaluation import tournament
        from tasks.export import conversation

        if name not in tournament.FIXED:
            conversation.place(name, self.status)

    def player(self, name: str) -> Player:
        """See `tournament.hold`."""
        from evaluation import tournament
        from tasks.export import conversation

        if name in tournament.FIXED:
            return tournament.FixedPlayer(name, self.seed)
        player = self.loaded.pop(name, None)
        if player is None:
            while len(self.loaded) >= LOADED:
                self.loaded.pop(next(iter(self.loaded)))
            model, system_prompt = conversation.load(name, self.status)
            player = tournament.ModelPlayer(name, model, self.sampling, self.seed, system_prompt)
        self.loaded[name] = player  # the one that was asked for last stands last
        return player


def table(standings: Standings, first: str, openings: int, games: int) -> list[str]:
    """The standings as lines of text: ratings, then what each pairing came to.

    Args:
        first: the player whose rating is 0.
    """
    from evaluation.pages.page import visible

    count = len(standings.ratings)
    rows = [("", "player", "rating", "points")]
    rows += [
        (str(place), visible(each.name), _rating(each, first), _share(each.points, each.points_low, each.points_high))
        for place, each in enumerate(standings.ratings, 1)
    ]
    pairs = [("first", "second", "points of the first", "paid", "illegal messages")]
    for pair in standings.pairs:
        faults = ", ".join(f"{visible(name)} {number}" for name, number in pair["faults"].items() if number)
        share = _share(pair["value"], pair["low"], pair["high"])
        pairs.append((visible(pair["first"]), visible(pair["second"]), share, f"{pair['paid']:+.2f}", faults))
    return [
        f"{count} players, {openings} openings, {games} games of each two from each, half in either seat", "", *aligned(rows), "",
        f"Ratings are Elo's over {visible(first)}: 100 more are 64 % of the points, 200 more 76 %. A draw is half a point.", "",
        *aligned(pairs), *_few(openings),
    ]  # fmt: skip


def _few(openings: int) -> list[str]:
    if openings >= ENOUGH:
        return []
    return [
        "",
        f"Few openings: of players far apart the intervals of fewer than {ENOUGH} cover less than they say (88 % for 95 %).",
    ]


def _rating(each: Rating, first: str) -> str:
    if each.name == first:
        return "0"
    low, high = (sign if end is None else f"{end:+.0f}" for end, sign in ((each.low, "-inf"), (each.high, "inf")))
    return f"{each.rating:+.0f} [{low}, {high}]"


def _share(value: float, low: float, high: float) -> str:
    return f"{value:.1%} [{low:.1%}, {high:.1%}]".replace("%", " %")
