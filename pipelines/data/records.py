"""What crosses between stages and inside a step: plain, serialisable records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Protocol, TypeVar

Message = dict[str, str]
"""`{"role": "system" | "user" | "assistant" | "tool", "content": text}`."""

RAW_TEXT = "text"
"""In the info of a record without a prompt: the text that is to be learned."""
TURN_WEIGHTS = "turn_weights"
"""In a record's info: what each of the assistant's messages counts when it is trained, the last one included; 0 is not trained."""
EFFORT = "effort"
"""In a record's info: how much reasoning its system message asks for."""
PREFERENCES = "preferences"
"""In a record's info: aim → how much its system message says that it is worth."""
PREFERENCE = "preference"
"""As the weight of a reward's term: what the record says that the term's name is worth."""
UNSCORED = "unscored"
"""Status of a trajectory that no verifier has met."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One verifiable problem; the row of a curated Parquet file."""

    uid: str
    """32 hexadecimal characters of a hash over source and prompt; stable across runs."""
    prompt: list[Message]
    answer: str
    """What the verifier compares with."""
    verifier: str
    """A name in pipelines.verifiers."""
    source: str
    licence: str
    info: dict[str, Any] = field(default_factory=dict)
    """Anything else: `solution` (a worked answer for SFT), the generator's metadata, tags."""

    @property
    def raw_text(self) -> str | None:
        """The text of a record that holds nothing else: it asks no question, and is trained whole; None for a problem."""
        return None if self.prompt else str(self.info.get(RAW_TEXT, ""))

    @property
    def has_gold(self) -> bool:
        """Whether its verifier has something to compare a completion with."""
        return self.verifier != "exact" or bool(self.answer.strip())

    @property
    def parts(self) -> set[Part]:
        """What it holds."""
        told = {Part.GOLD: self.has_gold, Part.PAIR: bool(self.info.keys() & {"chosen", "desirable"})}
        told[Part.TARGET] = bool(self.raw_text or self.info.get("solution") or self.answer.strip())
        return {part for part, holds in told.items() if holds}

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """JSON schemas of the tools that the prompt offers, as chat templates take them; None where it offers none."""
        return self.info.get("tools") or None


class Part(StrEnum):
    """What a record can hold for a stage to read, beside its prompt."""

    GOLD = "gold answer"
    TARGET = "answer to be learned"
    PAIR = "pair or label"


class Role(IntEnum):
    """Who wrote a token."""

    PROMPT = 0
    HINT = 1
    FORCED = 2
    POLICY = 3
    ENVIRONMENT = 4
    TEACHER_FORCED = 5
    """Not chosen by the policy and trained all the same: a demonstration, or a hint that is to be learned."""


class Stop(IntEnum):
    """Why a trajectory ended."""

    END = 0
    """An end-of-sequence token."""
    LENGTH = 1
    """The token limit."""
    TURNS = 2
    """The turn limit."""
    ENVIRONMENT = 3
    """The environment said done."""
    ERROR = 4
    """An infrastructure failure; the row has no trained token."""
    WINDOW = 5
    """Cut at the window of its step; it goes on in a later one."""


@dataclass(kw_only=True, slots=True)
class Trajectory:
    """One rollout: the exact token ids and everything known per token. Never re-tokenised."""

    uid: str
    group: int
    """Rollouts that may share a baseline; unique within the step."""
    tokens: list[int]
    """[T] prompt, then all that followed."""
    role: list[int]
    """[T] `Role` of each token."""
    logp_old: list[float]
    """[T] log-probability under the distribution that produced the token; 0 where the policy chose none."""
    max_tokens: int
    stop: Stop
    version: int
    """Optimizer step of the weights that sampled it, or the last of its windows."""
    entropy_old: list[float] | None = None
    token_reward: list[float] | None = None
    """[T] what a reward pays single tokens, beside `score`."""
    terms: list[float] | None = None
    """[C] what each term of a reward that is a sum of named terms adds to `score`."""
    turn_terms: list[float] | None = None
    """[S * C], turn by turn, what each of these terms pays the turn."""
    turn: list[int] | None = None
    turn_state: list[int] | None = None
    turn_reward: list[float] | None = None
    turn_components: list[dict[str, float]] | None = None
    """[S] named parts of each turn's reward, where the environment names them."""
    turn_belief: list[float] | None = None
    """[S] what each turn's reward has for the belief that it states."""
    turn_valid: list[float] | None = None
    """[S] 1 where the environment could execute the turn's action, else 0."""
    turn_observation: list[str] | None = None
    """[S] what the environment showed after each turn; the policy may not have read the last one."""
    turn_calls: list[list[dict[str, Any]]] | None = None
    """[S] tool calls of each turn: `name`, `arguments`, `outcome` (`pipelines.tools.Outcome`), `text` of the reply."""
    node: list[int] | None = None
    mc_value: list[float] | None = None
    """[T] mean score of fresh continuations from before the token; NaN where none was drawn."""
    potential: list[float] | None = None
    """[S] what a rollout that probes its steps thinks of each."""
    versions: list[int] | None = None
    """[T] `version` of each token, where rows are drawn in windows; a prompt's is that of the first window."""
    stream: int | None = None
    """Of the row's random numbers, where rows are drawn in windows."""
    replayed: bool = False
    """A replay has put it among the rows of its step; it was sampled, and took part, before."""
    propensity: float | None = None
    """The chance with which the curriculum drew its problem; None where it told none."""
    drawn_elsewhere: int = 0
    """Tokens that the policy sampled for it from another prompt than its own: teacher-forced here, and sampled all the same."""
    score: float | None = None
    """The verifier's score; None is unscored, never incorrect."""
    correct: bool | None = None
    status: str = UNSCORED
    components: dict[str, float] = field(default_factory=dict)
    source: str = ""
    """The problem's source."""
    text: str = ""
    """The decoded completion, for verifiers and logs only."""
    player: int | None = None
    """The seat that the policy took in a game; None where there are no players."""
    opponent: str | None = None
    """Who had the game's other seats, by its name in `rlvr.rollout.opponents`; None where that is the policy, or nobody of such a pool."""
    prompt: list[Message] | None = None
    """What it was asked, where that need not be its problem's prompt: in a game that the policy plays with itself, of a variant or of a
    relabelled problem."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What one method notes about it for its own column or its `on_rollouts`, which has the rows of every process; plain values."""
    logged: dict[str, Any] = field(default_factory=dict)
    """What reward functions noted about it, for logs only."""

    def only(self, names: Iterable[str]) -> Trajectory:
        """A copy with these fields and those that every row has, but no token of which they do not speak."""
        kept = {"uid", "group", "max_tokens", "stop", "version", *names}
        values: dict[str, Any] = {name: getattr(self, name) for name in kept}
        return Trajectory(**{"tokens": [], "role": [], "logp_old": []} | values)

    def sampled(self) -> list[int]:
        """Ids of the tokens that the policy drew, in order."""
        return [token for token, role in zip(self.tokens, self.role, strict=True) if role == Role.POLICY]

    def asked(self, problems: Mapping[str, Problem]) -> Problem:
        """Its problem (of `problems` by uid), with what it was asked itself where that is something else: `prompt`."""
        problem = problems[self.uid]
        return problem if self.prompt is None else replace(problem, prompt=self.prompt)

    @property
    def sampled_count(self) -> int:
        """Tokens that were sampled for it."""
        return sum(role == Role.POLICY for role in self.role) + self.drawn_elsewhere

    def to_plain(self) -> dict[str, Any]:
        """The row as plain values, for commits."""
        return asdict(self) | {"stop": int(self.stop)}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Trajectory:
        """The row again."""
        return cls(**{**values, "stop": Stop(values["stop"])})


class InGroup(Protocol):
    """What belongs to a group."""

    @property
    def group(self) -> int:
        """Its group."""


Row = TypeVar("Row", bound=InGroup)


def by_group(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of each group, in their order."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all rows share.

    >>> common_length([[1, 2, 3], [1, 2], [1, 2, 4]])
    2
    """
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))
