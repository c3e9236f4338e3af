"""What TextArena leaves open about its games: ids of two that it brings without one, what they pay, and which messages are legal moves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError

WITHOUT_ID = {"Hanabi": "HanabiEnv", "LeducHoldem": "LeducHoldemEnv"}
"""Games that the package has and gives no id: name → class. Here they have ids as its other games do."""
PERFECT = 25
"""Cards of a complete game of Hanabi."""


def _columns(env: Any) -> Iterable[str]:
    return (f"[col {column}]" for column in range(env.num_cols))


def _squares(count: int) -> Callable[[Any], Iterable[str]]:
    return lambda env: (f"[{square}]" for square in range(count))


def _takes(env: Any) -> Iterable[str]:
    piles = enumerate(env.state.game_state["piles"])
    return (f"[{pile} {count}]" for pile, size in piles for count in range(1, size + 1))


def _flips(env: Any) -> Iterable[str]:
    """A player who has no move skips, whatever the message is."""
    return [f"[{row}, {column}]" for row, column in env.state.game_state["valid_moves"]] or ["[skip]"]


def _advances(env: Any) -> Iterable[str]:
    size, ahead = env.board_size, 1 if env.state.current_player_id == 0 else -1
    files, ranks = "abcdefghijklmnopqrstuvwxyz"[:size], range(1, size + 1)
    near = [(start, end) for start, end in product(files, repeat=2) if abs(ord(start) - ord(end)) < 2]
    return (f"[{start}{rank}{end}{rank + ahead}]" for rank in ranks if rank + ahead in ranks for start, end in near)


def _of_hanabi(env: Any) -> Iterable[str]:
    """Plays, discards and true hints; the package does not ask whether a hint is true."""
    game, own = env.state.game_state, env.state.current_player_id
    held = [place for place, card in enumerate(game["player_hands"][own]) if card is not None]
    moves = [f"[{verb}] {place}" for verb in ("Play", "Discard") for place in held]
    if game["info_tokens"]:
        for player, hand in game["player_hands"].items():
            for place, card in enumerate(hand):
                if player != own and card is not None:
                    told = (f"color {card.suit.value}", f"rank {card.rank}")
                    moves += [f"[Reveal] player {player} card {place} {hint}" for hint in told]
    return moves


def _words(*words: str) -> Callable[[Any], Iterable[str]]:
    return lambda env: (f"[{word}]" for word in words)


MOVES: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "Breakthrough": _advances,
    "ConnectFour": _columns,
    "Hanabi": _of_hanabi,
    "KuhnPoker": _words("check", "bet", "call", "fold"),
    "LeducHoldem": _words("check", "bet", "call", "raise", "fold"),
    "Nim": _takes,
    "Othello": _flips,
    "PigDice": _words("roll", "hold"),
    "SimpleTak": lambda env: (f"[{square}]" for square in range(env.board_size**2)),
    "ThreePlayerTicTacToe": _squares(25),
    "TicTacToe": _squares(9),
    "UltimateTicTacToe": lambda env: (f"[{board} {square}]" for board, square in product(range(9), repeat=2)),
    "WildTicTacToe": lambda env: (f"[{mark} {square}]" for mark, square in product("XO", range(9))),
}
"""Name of a game → the messages among which the legal moves are."""


class Refusals:
    """In the place of a state's `set_invalid_move`: counts what the game refuses, and follows copies of the state.

    The package's own marks do not tell: some games take them back within the same step.
    """

    def __init__(self, state: Any) -> None:
        self.state, self.count = state, 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Refuse a message, as the package does."""
        self.count += 1
        return type(self.state).set_invalid_move(self.state, *args, **named)


def name_of(game: str) -> str:
    """The game of an id, whatever its size and its observations are.

    >>> name_of("ConnectFour-v0-large")
    'ConnectFour'
    """
    return game.partition("-v")[0]


def inner(env: Any) -> Any:
    """A game without its wrappers."""
    while hasattr(env, "env"):
        env = env.env
    return env


def make(game: str, options: Mapping[str, Any]) -> Any:
    """A new game.

    Args:
        options: of the game's class, in place of those of the id.

    Raises:
        RecipeError: TextArena is not installed, has no such game that can be loaded, or the game has no such options.
    """
    try:
        import textarena
        from textarena.envs import BOARDGAME_WRAPPERS, DEFAULT_WRAPPERS
        from textarena.envs.registration import ENV_REGISTRY, register_with_versions
    except ImportError:
        raise RecipeError(f"environment textarena: install it: {install_hint('textarena')}.") from None
    name = name_of(game)
    if name in WITHOUT_ID and f"{name}-v0" not in ENV_REGISTRY:
        entry = f"textarena.envs.{name}.env:{WITHOUT_ID[name]}"
        wrappers = {"default": DEFAULT_WRAPPERS, "-train": DEFAULT_WRAPPERS if name == "Hanabi" else BOARDGAME_WRAPPERS}
        register_with_versions(id=f"{name}-v0", entry_point=entry, wrappers=wrappers)
    try:
        env = textarena.make(game, **options)
    except TypeError as error:
        raise RecipeError("options", f"the game {game} does not take them ({error})", "Correct them.") from None
    except (ValueError, LookupError, ImportError, OSError, SyntaxError) as error:
        # No such game, or one whose word lists or data are not there, or that is written for a later Python.
        why = " ".join(str(error).split())[:200]
        raise RecipeError(f"environment textarena: no game {game!r} here ({why}).") from None
    if name == "LeducHoldem":
        _order_moves(inner(env))
    return env


def _order_moves(env: Any) -> None:
    """Let the game list legal moves in one order: it shows a set of texts, whose order differs from process to process."""
    unordered = env._legal
    env._legal = lambda state: sorted(unordered(state))


def paid(env: Any, game: str) -> dict[int, float]:
    """What each player has been paid at the end of a game.

    In Hanabi it is the share of the 25 cards that were played, for everybody: the package computes the score and reports 0 for it.
    """
    rewards, _ = env.close()
    if name_of(game) == "Hanabi":
        rewards = {player: score / PERFECT for player, score in inner(env).rewards.items()}
    return {int(player): float(reward) for player, reward in (rewards or {}).items()}


def legal(env: Any, game: str) -> list[str]:
    """The legal moves of the player who is to move: the messages of `MOVES` that the game itself accepts, tried in copies of it.

    Draws from Python's random numbers, whose state the caller restores.

    Raises:
        RecipeError: nobody has listed the game's moves.
    """
    if name_of(game) not in MOVES:
        raise RecipeError("game", *unknown(game))
    bare = inner(env)
    return [message for message in MOVES[name_of(game)](bare) if _accepts(_without_history(bare), message)]


def unknown(game: str) -> tuple[str, str]:
    """What is wrong with a fixed player in a game whose moves nobody has listed, and the fix."""
    return (
        f"the legal moves of {game} are not known here",
        f"They are for {', '.join(MOVES)}; other games can be played by models.",
    )


def _without_history(env: Any) -> Any:
    """A copy that has shown nothing: what a game has shown would be most of it, and decides nothing."""
    state = env.state
    return copy.deepcopy(
        env, {id(state.logs): [], id(state.observations): {player: [] for player in state.observations}}
    )


def _accepts(env: Any, message: str) -> bool:
    before = env.state.set_invalid_move.count
    env.step(message)
    return bool(env.state.set_invalid_move.count == before)
