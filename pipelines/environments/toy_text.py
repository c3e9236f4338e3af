"""Gymnasium's other toy-text games as text: Taxi, CliffWalking and Blackjack, one word a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._rows import starting_row

Game = Literal["taxi", "cliff", "blackjack"]
IDS = {"taxi": "Taxi-v4", "cliff": "CliffWalking-v1", "blackjack": "Blackjack-v1"}
ACTIONS = {
    "taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "cliff": ("up", "right", "down", "left"),
    "blackjack": ("stick", "hit"),
}
STANDS = ("red", "green", "yellow", "blue", "the taxi")

LIBRARIES = ("gymnasium",)
PLAYED = True


class World:
    """An episode of `game` from `seed` of the problem's info, after the actions in `walked`; rewards are the game's times `scale`.

    Success: the passenger is delivered, the goal is reached, the hand is won.
    """

    waits = False

    def __init__(self) -> None:
        self.game, self.scale, self.done = "", 1.0, False
        self.env: Any = None

    def reset(self, problem: Problem) -> list[Message]:
        """Start the game."""
        self._open(str(problem.info["game"]), int(problem.info["seed"]), float(problem.info.get("scale", 1.0)))
        messages: list[Message] = [{"role": "user", "content": self._picture()}]
        for action in problem.info.get("walked", []):
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": self.step(action).observation})
        return messages

    def _open(self, game: str, seed: int, scale: float) -> None:
        import gymnasium

        if game not in IDS:
            raise RecipeError(f"environment toy_text: no game {game!r}", fix=did_you_mean(game, IDS))
        self.game, self.scale, self.done = game, scale, False
        self.env = gymnasium.make(IDS[game], disable_env_checker=True).unwrapped
        self.env.reset(seed=seed)

    def _picture(self) -> str:
        if self.game == "taxi":
            row, column, passenger, goal = self.env.decode(self.env.s)
            return f"taxi {row},{column} passenger {STANDS[passenger]} to {STANDS[goal]}"
        if self.game == "cliff":
            return "at {},{} of 4,12".format(*divmod(int(self.env.s), 12))
        total, shown, ace = self.env._get_obs()
        return f"sum {total} dealer {shown} ace {'yes' if ace else 'no'}"

    def state_key(self) -> str:
        """What is shown, which is all that matters."""
        return f"{self.game} {self._picture()}"

    def step(self, message: str) -> Step:
        """One action; a message that is none costs a turn and nothing else."""
        action = message.strip().lower()
        if action not in ACTIONS[self.game] or self.done:
            return Step(self._picture(), 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        _, reward, self.done, _, _ = self.env.step(ACTIONS[self.game].index(action))
        success = bool(self.done and (self.game == "cliff" or reward > 0))
        return Step(
            self._picture(), self.scale * float(reward), bool(self.done), self.state_key(), {"success": success}
        )

    def state_dict(self) -> dict[str, Any]:
        """Game, position or cards, and its random numbers."""
        place = (
            {"player": list(map(int, self.env.player)), "dealer": list(map(int, self.env.dealer))}
            if self.game == "blackjack"
            else {"s": int(self.env.s)}
        )
        generator_state = self.env.np_random.bit_generator.state
        return {
            "game": self.game,
            "scale": self.scale,
            "done": bool(self.done),
            "place": place,
            "random": generator_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(state["game"], 0, state["scale"])
        for name, value in state["place"].items():
            setattr(self.env, name, value)
        self.env.np_random.bit_generator.state = state["random"]
        self.done = state["done"]


def hidden(info: Mapping[str, Any]) -> int | None:
    """The seed of the cards of Blackjack; the other games show all."""
    return info.get("seed") if info.get("game") == "blackjack" else None


def expert(world: World) -> list[str]:
    """A shortest way to success from here as actions; for Blackjack, hits up to 17 that are tried on a copy."""
    if world.game == "blackjack":
        copy, actions = World(), []
        copy.load_state_dict(world.state_dict())
        while not copy.done:
            actions.append("hit" if copy.env._get_obs()[0] < 17 else "stick")
            copy.step(actions[-1])
        return actions
    start = int(world.env.s)
    path_to: dict[int, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for number, name in enumerate(ACTIONS[world.game]):
            _, following, reward, done = world.env.P[state][number][0]
            if done and (world.game == "cliff" or reward > 0):
                return [*path_to[state], name]
            if not done and reward > -10 and following not in path_to:
                path_to[int(following)] = [*path_to[state], name]
                queue.append(int(following))
    return []


def problems(
    size: int, seed: int, *, game: Game = "taxi", scale: float = 1.0, demonstrations: bool = False
) -> Iterator[dict[str, Any]]:
    """Starts of a game; the expert's next action is the solution.

    Args:
        size: rows.
        seed: of the games.
        game: taxi, cliff (which always starts alike) or blackjack.
        scale: what the game's rewards are multiplied with.
        demonstrations: one row per action of the expert, for SFT.
    """
    yielded = number = 0
    while yielded < size:
        info: dict[str, Any] = {
            "environment": "toy_text",
            "game": game,
            "seed": seed * 1_000_003 + number,
            "scale": scale,
        }
        world = World()
        starting_row(world, "", info)  # resets it
        path = expert(world)
        number += 1
        for turn in range(len(path) if demonstrations else 1):
            if yielded == size:
                return
            yield starting_row(World(), path[turn], {**info, "walked": path[:turn], "solution": path[turn]})
            yielded += 1
