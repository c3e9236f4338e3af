"""One conversation with an environment, token by token; shared by rollouts with turns and by evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines import environments
from pipelines.data import chat
from pipelines.data.records import UNSCORED, Role, Stop, Trajectory
from pipelines.errors import RecipeError

if TYPE_CHECKING:
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
    success: bool = False
    invalid: int = 0
    stop: Stop | None = None

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

    def fork(self) -> Episode:
        """An independent copy of the episode so far."""
        branch = copy.copy(self)
        for name in ("tokens", "role", "logp", "entropy", "turn", "node", "states", "rewards", "texts"):
            setattr(branch, name, list(getattr(self, name)))
        branch.world = environments.make(self.name)
        branch.world.load_state_dict(self.world.state_dict())
        return branch

    def trajectory(self, context: RolloutContext, max_turns: int, with_nodes: bool = False) -> Trajectory:
        """The finished record."""
        has_turns = bool(self.states)
        return Trajectory(
            uid=self.request.problem.uid,
            group=self.request.group,
            tokens=self.tokens,
            role=self.role,
            logp_old=self.logp,
            entropy_old=self.entropy if context.entropy else None,
            max_tokens=context.sampling.max_tokens * max_turns,
            stop=(self.stop or Stop.TURNS) if has_turns else Stop.ERROR,
            version=context.version,
            turn=self.turn,
            turn_state=self.states,
            turn_reward=self.rewards,
            node=self.node if with_nodes else None,
            score=float(sum(self.rewards)) if has_turns else None,
            correct=self.success if has_turns else None,
            status=("correct" if self.success else "incorrect") if has_turns else UNSCORED,
            components={"verifier": float(sum(self.rewards)), "invalid_turns": float(self.invalid)},
            text=" | ".join(self.texts),
        )


def play(requests: list[RolloutRequest], context: RolloutContext, max_turns: int) -> list[Trajectory]:
    """All episodes of the requests side by side, `max_turns` turns at most."""
    episodes = [start(request) for request in requests for _ in range(request.rollouts)]
    for _ in range(max_turns):
        active = [episode for episode in episodes if episode.stop is None]
        if not active:
            break
        advance(active, context)
    return [episode.trajectory(context, max_turns) for episode in episodes]


def start(request: RolloutRequest) -> Episode:
    """A new episode of a problem.

    Raises:
        RecipeError: the problem names no environment, or one that does not exist.
    """
    name = request.problem.info.get("environment")
    if name is None:
        raise RecipeError(
            f"rlvr.rollout: problem {request.problem.uid} has no environment; multi-turn rollouts need records of a source with "
            "kind: environment."
        )
    world = environments.make(str(name))
    world.reset(request.problem)
    episode = Episode(request, world, str(name), [], [], [], [], [], [])
    episode.add(request.prompt, Role.PROMPT)
    return episode


def advance(episodes: list[Episode], context: RolloutContext) -> None:
    """One turn of every episode."""
    prefixes = [e.tokens for e in episodes]
    completions = context.sampler.extend(prefixes, context.sampling, context.generator, entropy=context.entropy)
    for episode, completion in zip(episodes, completions, strict=True):
        take_turn(episode, completion, context)


def take_turn(episode: Episode, completion: Completion, context: RolloutContext, node: int = -1) -> None:
    """Put the policy's tokens into the episode and let the environment answer."""
    if not completion.tokens:
        episode.stop = Stop.LENGTH  # no room left in the context
        return
    state = environments.key_number(episode.world.state_key())
    text = context.decode(completion.tokens)
    episode.speak(completion, node)
    step = episode.world.step(chat.after_thinking(text))
    episode.states.append(state)
    episode.rewards.append(step.reward)
    episode.texts.append(text)
    episode.invalid += bool(step.info.get("invalid"))
    episode.success = bool(step.info.get("success"))
    if step.done:
        episode.stop = Stop.ENVIRONMENT
        return
    has_end = completion.stop == Stop.END
    reply = context.reply(step.observation, with_end=not has_end)
    episode.add(reply, Role.ENVIRONMENT)
