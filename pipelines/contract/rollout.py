"""What rollouts are made of: requests in, completions drawn, trajectories out. Lies below the loop; evaluation uses it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pipelines.contract.scorer import NoScorer, Scorer
from pipelines.data import chat
from pipelines.data.records import Message, Problem, Role, Stop, Trajectory

if TYPE_CHECKING:
    import torch

    from pipelines.contract.hidden_statistics import HiddenStatistics
    from pipelines.contract.sampling import Sampling
    from pipelines.contract.streams import Streams


@dataclass(slots=True)
class Completion:
    """What the policy added to a prefix."""

    tokens: list[int]
    """The end token included, where there is one."""
    logp: list[float]
    """Log-probability of each token under the distribution it was drawn from, in nats."""
    stop: Stop
    entropy: list[float] | None = None
    """Entropy of that distribution, in nats, where asked for."""


class Sampler(Protocol):
    """What a rollout strategy needs of an engine: tokens in, tokens with log-probabilities out.

    One with `concurrent = True` may be asked by several threads at once, and batches what they ask.
    """

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator | None,
        *,
        entropy: bool = False,
        streams: Sequence[tuple[int, int]] | None = None,
    ) -> list[Completion]:
        """One completion per prefix, in order; equal prefixes are computed once.

        Args:
            streams: of each prefix, its row's RNG stream and the tokens drawn from it so far. A token then depends on these and on
                the weights alone, not on the other rows; `generator` is not used, and may be None. A server only makes a seed of them.
        """
        ...


StoredCompletion = Mapping[str, Any]
"""A row of a sample stage: `prompt_ids`, `completion_ids`, `logp`, `entropy`, `text`, `stop`, `max_tokens`, the most that it could have;
of episodes also their story and score."""


def no_stored_rows(uid: str) -> Sequence[StoredCompletion]:
    """Of a stage that names no samples."""
    return ()


@dataclass(frozen=True)
class RolloutRequest:
    """A problem sent to the rollout."""

    problem: Problem
    prompt: list[int]
    """Token ids of the rendered prompt."""
    group: int
    """Group of its trajectories; unique within the step."""
    rollouts: int
    """Trajectories wanted."""
    hint: list[int] = field(default_factory=list)
    """Token ids that the answer starts with, not chosen by the policy."""
    system_prompt: str | None = None
    """That the prompting part put before `prompt`; the policy's other seats in a game are told it too."""


@dataclass(frozen=True)
class RolloutContext:
    """What a prompting part and a rollout strategy work with."""

    sampler: Sampler
    sampling: Sampling
    prompts: int
    """Problems of the draw. A paraphrase of the problem with group g has the group g + prompts, a third one g + 2 prompts."""
    streams: Streams
    """Where the draw's random numbers come from, group by group: ranks share a draw, and all must come to the same rollouts."""
    entropy: bool
    """Whether trajectories must carry `entropy_old`."""
    version: int
    """Number of optimizer updates that the sampling weights have had."""
    tokenizer: Any
    window: int | None = None
    """Tokens that a row may grow by before it is cut (`Stop.WINDOW`); None for no such limit."""
    scorer: Scorer = field(default_factory=NoScorer)
    """How likely a model finds a text; by the policy's weights, those that sample."""
    stored: Callable[[str], Sequence[StoredCompletion]] = no_stored_rows
    """Of a problem's uid, the completions that the stage named by `samples` drew."""
    progress: float = 0.0
    """Share of the run's steps that are done, from 0 to 1; 0 before the first one and outside of training."""
    on_timeout: Literal["incorrect", "unscored"] = "incorrect"
    """What becomes of a completion that takes its verifier too long, for rollouts that verify their rows themselves."""

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        groups: Sequence[int],
        *,
        sampling: Sampling | None = None,
        entropy: bool | None = None,
        streams: Sequence[tuple[int, int]] | None = None,
    ) -> list[Completion]:
        """One completion per prefix, in order, each with a new random stream of its group.

        Args:
            groups: of each prefix.
            sampling: other settings than the draw's.
            entropy: whether completions carry their entropies; default: where trajectories must.
            streams: instead of new ones, of each prefix its row's stream and the tokens drawn from it so far.
        """
        wanted = self.entropy if entropy is None else entropy
        if streams is None:
            streams = [(self.streams.new(group), 0) for group in groups]
        return self.sampler.extend(prefixes, sampling or self.sampling, None, entropy=wanted, streams=streams)

    def decode(self, tokens: list[int]) -> str:
        """Text of a completion, special tokens left out; for verifiers and logs only."""
        return chat.completion_text(self.tokenizer, tokens)

    def render(
        self, conversations: list[list[Message]], tools: Sequence[chat.ToolSchemas | None] | None = None
    ) -> list[list[int]]:
        """Token ids of conversations up to where the assistant speaks; `tools`: what each of them offers."""
        return chat.render_prompts(self.tokenizer, conversations, tools)

    def follow(self, messages: Sequence[Message], *, with_end: bool) -> list[int]:
        """Token ids of messages that follow an assistant's turn; `with_end` closes a turn that was cut off."""
        return chat.following_tokens(self.tokenizer, messages, with_end=with_end)


@dataclass(frozen=True)
class SetupContext:
    """What a method may ask of the run and of the policy before it has learned anything."""

    problems: int
    """Problems of the split, by index from 0."""
    seed: int
    prompts: Callable[[], list[list[int]]]
    """Token ids of every problem's prompt."""
    rollouts: Callable[[list[int], int], list[Trajectory]]
    """Scored setup-time rollouts of some problems, so many each; a row's group is the position of its problem in the list."""
    columns: Callable[[list[Trajectory]], dict[str, Any]]
    """Trajectories as columns, on the CPU."""
    hidden: Callable[[list[list[int]], HiddenStatistics], list[list[float]]]
    """Statistics of the starting policy's hidden states on token sequences."""
    sources: Sequence[str]
    """Of every problem the source that its record names."""


@dataclass(frozen=True)
class DrawnProblem:
    """A problem of a draw, scored."""

    rows: list[Trajectory]
    """Its trajectories, those of its paraphrases included."""
    trains: bool
    """Whether the filter leaves any of them in the loss."""


@dataclass(frozen=True)
class Allocation:
    """A problem that a curriculum proposes, and the rollouts it gets."""

    problem: int
    """Index in the split."""
    rollouts: int
    propensity: float | None = None
    """The chance with which it was drawn among the problems that could have been; None of a curriculum that has none to tell."""


@dataclass(frozen=True)
class GroupOutcome:
    """What came of a proposed problem: rows that the policy wrote and that were scored."""

    problem: int
    scored: int
    correct: int

    @property
    def pass_rate(self) -> float:
        """Share of the scored rows that are correct.

        >>> GroupOutcome(problem=7, scored=4, correct=3).pass_rate
        0.75

        Raises:
            ZeroDivisionError: nothing was scored; such an outcome says nothing about the problem.
        """
        return self.correct / self.scored

    @classmethod
    def of(cls, problem: int, rows: Sequence[Trajectory]) -> GroupOutcome:
        """Count the episodes of a problem's rows; unscored rows and demonstrations are no evidence about the policy."""
        own = [(place, row) for place, row in enumerate(rows) if row.score is not None and int(Role.POLICY) in row.role]
        episodes = {(row.group, row.extras.get("episode", -1 - place)): bool(row.correct) for place, row in own}
        return cls(problem, len(episodes), sum(episodes.values()))


TryOut = Callable[[list[int], int, float], list[GroupOutcome]]
"""Problems (indices in the split), rollouts of each and a temperature (0: greedy) → the outcome of each problem, in order."""


def no_try_out(problems: list[int], rollouts: int, temperature: float) -> list[GroupOutcome]:
    """Of no loop: nothing was scored."""
    return [GroupOutcome(problem, 0, 0) for problem in problems]
