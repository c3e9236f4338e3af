"""Kuhn poker: two players, a card each of J, Q and K, a chip each in the pot, one bet of a chip.

Hand 37.
You hold K.
Moves: check, bet.
Answer fold or call.

Check or bet; against a bet, call or fold. Who calls or checks to the end shows: the higher card takes the pot. The game has exact
equilibria (H. W. Kuhn, A Simplified Two-Person Poker, 1950), worth -1/18 chip a hand to the first player, and what a strategy loses to the
best responses against it is found by trying all of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, validate_call

from pipelines.data.records import Message
from pipelines.papers.spiral.game import GameWorld, Opponent, rows, seats_of

CARDS = "JQK"
HANDS = [first + second for first, second in itertools.permutations(CARDS, 2)]
"""The cards of both seats."""
STORIES: dict[tuple[str, ...], tuple[str, str] | None] = {
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("fold", "call"),
    ("check", "bet"): ("fold", "call"),
    ("check", "check"): None,
    ("bet", "fold"): None,
    ("bet", "call"): None,
    ("check", "bet", "fold"): None,
    ("check", "bet", "call"): None,
}
"""Moves so far → the careful and the daring move there are; None at the end."""
DARES = {
    "": {"J": Fraction(1, 3), "Q": Fraction(0), "K": Fraction(1)},
    "check": {"J": Fraction(1, 3), "Q": Fraction(0), "K": Fraction(1)},
    "bet": {"J": Fraction(0), "Q": Fraction(1, 3), "K": Fraction(1)},
    "check bet": {"J": Fraction(0), "Q": Fraction(2, 3), "K": Fraction(1)},
}
"""An equilibrium, the one that bluffs most (alpha = 1/3 of a family from 0 to 1/3): story → card → chance of the daring move."""
Strategy = Mapping[tuple[str, str], float | Fraction]
"""(story, card) → chance of the daring move."""
EQUILIBRIUM: Strategy = {(story, card): chance for story, chances in DARES.items() for card, chance in chances.items()}


def payoff(cards: str, story: tuple[str, ...]) -> int:
    """Chips that the first player wins at the end of a story.

    >>> payoff("KJ", ("bet", "call")), payoff("JK", ("check", "check")), payoff("JK", ("bet", "fold"))
    (2, -1, 1)
    """
    if story[-1] == "fold":
        return 1 if len(story) == 2 else -1
    chips = 2 if story[-1] == "call" else 1
    return chips if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -chips


def expected(first: Strategy, second: Strategy) -> float:
    """Chips a hand that the first player wins on average, its strategy against the second's.

    >>> round(expected(EQUILIBRIUM, EQUILIBRIUM) * 18, 9)
    -1.0
    """

    def of(cards: str, story: tuple[str, ...]) -> float | Fraction:
        moves = STORIES[story]
        if moves is None:
            return payoff(cards, story)
        seat = len(story) % 2
        daring = (first, second)[seat][" ".join(story), cards[seat]]
        return (1 - daring) * of(cards, (*story, moves[0])) + daring * of(cards, (*story, moves[1]))

    return float(sum(of(cards, ()) for cards in HANDS) / len(HANDS))


def exploitability(strategy: Strategy) -> float:
    """Chips a hand that a perfect opponent wins from a strategy which takes each seat equally often; 0 for an equilibrium alone.

    The mean of what the best responses win in each seat: all 64 pure strategies of a seat are tried.

    >>> round(exploitability(EQUILIBRIUM), 9), round(exploitability({key: 0.5 for key in EQUILIBRIUM}), 6)
    (0.0, 0.458333)
    """
    sets = {seat: [key for key in EQUILIBRIUM if len(key[0].split()) % 2 == seat] for seat in (0, 1)}
    pure = {
        seat: [
            dict(zip(sets[seat], choice, strict=True)) for choice in itertools.product((0, 1), repeat=len(sets[seat]))
        ]
        for seat in sets
    }
    return (
        max(expected(reply, strategy) for reply in pure[0]) + max(-expected(strategy, reply) for reply in pure[1])
    ) / 2


class World(GameWorld):
    """A hand with the `cards` of both seats in the problem's info; what is paid is chips won.

    The exact player draws its moves from the equilibrium that bluffs most.
    """

    LOST = -2.0

    def next_seat(self) -> int | None:
        """The first player has seat 0."""
        return None if STORIES[tuple(self.moves)] is None else len(self.moves) % 2

    def legal(self) -> list[str]:
        """Two moves."""
        return list(STORIES[tuple(self.moves)] or ())

    def observation(self, seat: int) -> str:
        """The seat's card, all moves, and those that it has."""
        so_far = ", ".join(self.moves) or "none"
        return f"You hold {self.info['cards'][seat]}.\nMoves: {so_far}.\nAnswer {' or '.join(self.legal())}."

    def opening(self, seat: int) -> list[Message]:
        """The hand's number, and what the seat is told."""
        return [{"role": "user", "content": f"Hand {self.info['hand']}.\n{self.observation(seat)}"}]

    def payoffs(self) -> tuple[float, float]:
        """Chips won."""
        chips = float(payoff(self.info["cards"], tuple(self.moves)))
        return chips, -chips

    def best(self) -> dict[str, float]:
        """The equilibrium's chances."""
        seat = len(self.moves) % 2
        daring = float(EQUILIBRIUM[" ".join(self.moves), self.info["cards"][seat]])
        careful_move, daring_move = self.legal()
        return {careful_move: 1 - daring, daring_move: daring}


ASKED = range(100_000, 900_000, 100_000)
"""Numbers of the hands in which a policy is asked for its strategy."""


def decisions() -> list[tuple[list[Message], list[str]]]:
    """The conversation in which each decision of the game is made, in hands of several numbers, and its two moves."""
    asked: list[tuple[list[Message], list[str]]] = []
    for number in ASKED:
        for story, card in EQUILIBRIUM:
            world, moves = World(), story.split()
            seat = len(moves) % 2
            info = {"hand": number, "cards": 2 * card, "seats": [0, 1]}
            world.load_state_dict({"info": info, "seed": 0, "moves": moves[:seat], "fault": None})
            messages = world.opening(seat)
            if len(moves) > seat:
                world.moves = moves
                messages += [
                    {"role": "assistant", "content": moves[seat]},
                    {"role": "user", "content": world.observation(seat)},
                ]
            asked.append((messages, list(STORIES[tuple(moves)] or ())))
    return asked


def exact(chances: Sequence[Sequence[float]]) -> dict[str, float]:
    """What is known exactly of a policy: the `exploitability` of its mean strategy over the hands that it is asked about.

    Args:
        chances: of the two moves of each of the `decisions`, which add up to 1.
    """
    daring = [daring for _, daring in chances]
    return {
        "exploitability": exploitability(
            {key: sum(daring[i :: len(EQUILIBRIUM)]) / len(ASKED) for i, key in enumerate(EQUILIBRIUM)}
        )
    }


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    opponent: Opponent = "random",
    demonstrations: bool = False,
    errors: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.0,
) -> Iterator[dict[str, Any]]:
    """Hands with numbers, which tell equal cards apart; the policy takes both seats equally often.

    Args:
        size: rows.
        seed: of cards, seats and numbers, and of the opponent's luck in demonstrations.
        opponent: who has the other seat: random, perfect (an equilibrium), or policy: self-play in both seats.
        demonstrations: hands of the exact player against the opponent, one row per message, for SFT.
        errors: share of its moves that are any legal move; with 1 it teaches the form of a move and nothing else.

    Raises:
        RecipeError: demonstrations against the policy.
    """
    draw = random.Random(f"kuhn_poker {seed}")
    infos = (
        {
            "environment": "kuhn_poker",
            "opponent": opponent,
            "seats": seats_of(opponent, draw.randrange(2), demonstrations),
            "hand": draw.randrange(10**6),
            "cards": draw.choice(HANDS),
            "seed": draw.randrange(2**31),
        }
        for _ in itertools.count()
    )
    return rows(World, infos, size, demonstrations, errors, draw)
