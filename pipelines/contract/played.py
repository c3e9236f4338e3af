"""An episode that is played: its tokens and turns so far, its conversations, and the rows that are made of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipelines import environments
from pipelines.data.records import UNSCORED, Message, Role, Stop, Trajectory
from pipelines.environments._beliefs import COMPONENT as BELIEF

if TYPE_CHECKING:
    from pipelines.contract.compact import Compact
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest


@dataclass
class Episode:
    """An unfinished trajectory and its environment."""

    request: RolloutRequest
    world: environments.Environment
    name: str
    tokens: list[int]
    role: list[int]
    logp: list[float]
    entropy: list[float]
    turn: list[int]
    node: list[int]
    states: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    components: list[dict[str, float]] = field(default_factory=list)
    """Named parts of each turn's reward."""
    calls: list[list[dict[str, Any]]] = field(default_factory=list)
    """Tool calls of each turn."""
    worlds: list[str] = field(default_factory=list)
    """Key of the environment's state that each turn began in, whatever the turn is compared by."""
    replies: list[Message] = field(default_factory=list)
    """What the policy was told after each turn but the last."""
    observations: list[str] = field(default_factory=list)
    """What the environment showed after each turn, the last one too."""
    cuts: list[bool] = field(default_factory=list)
    """Whether each turn was cut at the token limit."""
    valid: list[float] = field(default_factory=list)
    """Whether the environment could execute the action of each turn that it answered, 1 or 0."""
    success: bool = False
    extensions: int = 0
    """Of its turn budget, taken so far."""
    status: str = ""
    """Why it ended, where the environment or its failure says so."""
    stop: Stop | None = None
    player: int | None = None
    """The policy's seat in a game."""
    opponent: str | None = None
    """Who has the game's other seats, where they are not the policy's."""
    opening: list[Message] | None = None
    """What that seat was asked first, where the policy has several or is drawn one."""
    restarts: list[tuple[int, int, list[Message]]] = field(default_factory=list)
    """Of each new conversation the place of its first token, its first turn, and its messages."""
    summaries: list[int] = field(default_factory=list)
    """The turns in which the policy summarised the episode, and after each of which a new conversation begins."""
    summarises: Compact | None = None
    """How the policy's next turn is such a summary; None where it is a turn like any other."""
    others: list[Episode] = field(default_factory=list, repr=False, compare=False)
    """Of the policy's other seats in the same game, which has the same environment."""

    def add(self, tokens: Sequence[int], role: Role, turn: int = -1, node: int = -1) -> None:
        """Tokens that the policy did not choose."""
        self.tokens += tokens
        self.role += [int(role)] * len(tokens)
        self.logp += [0.0] * len(tokens)
        self.entropy += [0.0] * len(tokens)
        self.turn += [turn] * len(tokens)
        self.node += [node] * len(tokens)

    def speak(self, completion: Completion, node: int) -> None:
        """The policy's tokens of a new turn."""
        count = len(completion.tokens)
        self.add(completion.tokens, Role.POLICY, len(self.states), node)
        self.logp[len(self.logp) - count :] = completion.logp
        if completion.entropy is not None:
            self.entropy[len(self.entropy) - count :] = completion.entropy

    @property
    def context(self) -> list[int]:
        """The tokens that the policy reads: those of the present conversation."""
        return self.tokens[self.restarts[-1][0] :] if self.restarts else self.tokens

    @property
    def played(self) -> int:
        """Turns that the environment has had: those that are no summaries."""
        return len(self.states) - len(self.summaries)

    def fork(self) -> Episode:
        """An independent copy of the episode so far."""
        branch = copy.copy(self)
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, list):
                setattr(branch, each.name, list(value))
        branch.world = environments.make(self.name)
        branch.world.load_state_dict(self.world.state_dict())
        return branch

    def trajectory(self, context: RolloutContext, max_turns: int, with_nodes: bool = False) -> Trajectory:
        """The finished record."""
        scored = bool(self.states) and self.stop != Stop.ERROR and self.status != "verifier_failed"
        verdict = self.status if self.status in SCORED else "correct" if self.success else "incorrect"
        return Trajectory(
            uid=self.request.problem.uid,
            group=self.request.group,
            tokens=self.tokens,
            role=self.role,
            logp_old=self.logp,
            entropy_old=self.entropy if context.entropy else None,
            max_tokens=context.sampling.max_tokens * max_turns,
            stop=(self.stop or Stop.TURNS) if self.states else Stop.ERROR,
            version=context.version,
            turn=self.turn,
            turn_state=self.states,
            turn_reward=self.rewards,
            turn_components=self.components if any(self.components) else None,
            turn_belief=[parts.get(BELIEF, 0.0) for parts in self.components],
            turn_valid=self.valid,
            turn_observation=self.observations,
            turn_calls=self.calls if any(self.calls) else None,
            node=self.node if with_nodes else None,
            score=float(sum(self.rewards)) if scored else None,
            correct=self.success if scored else None,
            status=verdict if scored else self.status or UNSCORED,
            components=self._parts(),
            text=" | ".join(self.texts),
            player=self.player,
            opponent=self.opponent,
            prompt=self.opening,
        )

    def _parts(self) -> dict[str, float]:
        """The reward and what it is made of, with the counts that an environment with tools has."""
        parts = {"verifier": float(sum(self.rewards)), "invalid_turns": float(self.valid.count(0.0))}
        if any(self.components):
            parts["calls"] = float(sum(map(len, self.calls)))
        for turn in self.components:
            for name, value in turn.items():
                parts[f"turn.{name}"] = parts.get(f"turn.{name}", 0.0) + value
        if self.extensions:
            parts["extensions"] = float(self.extensions)
        return parts


PER_TOKEN = ("tokens", "role", "logp", "entropy", "turn", "node")
PER_TURN = (
    "states", "rewards", "texts", "components", "calls", "worlds", "replies", "observations", "cuts", "valid",
)  # fmt: skip
"""Fields of an episode that are lists."""
SCORED = ("correct", "incorrect", "unparsable", "timed_out")
"""Statuses of a verifier's verdict that has a score."""


def restart(episode: Episode, messages: list[Message], context: RolloutContext) -> None:
    """Begin a new conversation."""
    [prompt] = context.render([messages], [episode.request.problem.tools])
    episode.restarts.append((len(episode.tokens), len(episode.states), messages))
    episode.add(prompt, Role.PROMPT)


def conversations(episode: Episode) -> list[Episode]:
    """An episode as one for each of its conversations in which the policy had a turn.

    Each is paid the whole episode's reward: what it lacks of that is paid with its last turn, as to a player who had none at the end.
    """
    if not episode.restarts:
        return [episode]
    firsts = [(0, 0, episode.opening), *episode.restarts, (len(episode.tokens), len(episode.states), None)]
    parts = []
    for (start, turn, opening), (end, next_turn, _) in pairwise(firsts):
        if turn == next_turn:
            continue
        part = copy.copy(episode)
        for name in PER_TOKEN:
            setattr(part, name, getattr(episode, name)[start:end])
        for name in PER_TURN:
            setattr(part, name, getattr(episode, name)[turn:next_turn])
        part.turn = [number - turn if number >= 0 else number for number in part.turn]
        part.opening, part.restarts = opening, []
        part.summaries = [number - turn for number in episode.summaries if turn <= number < next_turn]
        part.extensions = episode.extensions if next_turn == len(episode.states) else 0
        part.rewards[-1] += sum(episode.rewards) - sum(part.rewards)
        parts.append(part)
    return parts
