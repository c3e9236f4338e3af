"""ELLA: Exploration through Learned Language Abstraction.

arXiv 2103.05825. No preset uses it.

Turns are paid for completing low-level instructions that are relevant to the high-level one; which are, is learned from successes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pipelines.base.errors import DataError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.papers.common.instructed import Demonstration, TextEncoder, demonstrations, mlp
from pipelines.rlvr.common.turn_rewards import add_to_turns, scored_with_turns
from pipelines.rlvr.ops import row_mean

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext

FIELD = "rlvr.reward"
NAME = "ella"
HELD_OUT = 5
"""One demonstration in so many measures the termination classifier."""
FIRST_DISTANCE = 1e-3
"""Scale of the weights with which the relevance classifier begins: it finds everything relevant."""


class Termination(nn.Module):
    """Whether an instruction is carried out in a state: the most that a line of the observation says for it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = TextEncoder(width)
        self.judge = mlp(3 * width, 2 * width, 1)

    def forward(self, observations: Sequence[str], instructions: Sequence[str]) -> Tensor:
        """Log-odds, float32 [observations, instructions]."""
        lines = sorted({line for text in observations for line in text.split("\n")})
        place = {line: number for number, line in enumerate(lines)}
        shown, asked = self.encode(lines)[:, None], self.encode(instructions)[None]
        shown, asked = shown.expand(-1, len(instructions), -1), asked.expand(len(lines), -1, -1)
        of_lines = self.judge(torch.cat([shown, asked, shown * asked], -1)).squeeze(-1)
        read = [[place[line] for line in text.split("\n")] for text in observations]
        longest = max(map(len, read))
        return of_lines[torch.tensor([each + each[:1] * (longest - len(each)) for each in read])].amax(1)


class Relevance(nn.Module):
    """How relevant low-level instructions are to high-level ones: exp(-|A e(high) - B e(low)|_1), near 1 before it has learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = TextEncoder(width)
        self.high, self.low = nn.Linear(width, width // 2), nn.Linear(width, width // 2)
        with torch.no_grad():
            for layer in (self.high, self.low):
                layer.weight *= FIRST_DISTANCE
                layer.bias.zero_()

    def forward(self, high: Sequence[str], low: Sequence[str]) -> Tensor:
        """The distance, which is -log of the relevance, float32 [high, low]."""
        of_high, of_low = self.high(self.encode(high)), self.low(self.encode(low))
        return (of_high[:, None] - of_low[None]).abs().sum(-1)


@method(
    paper="2103.05825",
    title="ELLA: Exploration through Learned Language Abstraction",
    checked="official code (read; its networks read text, and a step learns from all pairs instead of a sample)",
)
class ella(Reward):
    """Adds weight c_t to the reward of turn t, c_t = 1 where it completes a low-level instruction that is relevant to the high-level one.

        success at turn N:  its reward loses weight * sum over t <= N of c_t discount^(t - N), so that successes are worth what they were
        c_t: the termination classifier h(observation after turn t, l) > 1/2 and the relevance classifier rho(g, l) > 1/2, each l once

    A failed episode keeps what it was paid, so keep `weight` times the instructions of a task below the reward of success (the official
    code has 0.25 / 20). With `clipped: false` c_t counts the instructions. h is learned before the first step from demonstrations of the
    expert of `environment` with `config`, the low-level task, whose instructions are the low-level ones: their last states against states
    before and against other instructions, other wordings ("a red ball", "the red ball") among them. rho begins with everything relevant
    and learns from every step: D[g] are the instructions completed in a success of g, intersected with those of its later successes
    (replaced by them where nothing is left), and

        loss = mean over g in D of (mean over l in D[g] of -log rho(g, l) + mean over the others of -log(1 - rho(g, l))) / 2

    The high-level instruction is the field `instruction` of a problem's info. Rows without turns are refused.
    """

    pays_turns = True
    keeps_score = True

    def __init__(
        self,
        *,
        environment: Annotated[str, Field(min_length=1, max_length=4096)],
        config: dict[str, Any] | None = None,
        instruction: Annotated[str, Field(pattern=r"^\w+$")] = "mission",
        weight: Annotated[float, Field(ge=0, le=1e3)] = 0.0125,
        discount: Annotated[float, Field(gt=0, le=1)] = 1.0,
        clipped: bool = True,
        demonstrations: Annotated[int, Field(ge=10, le=100_000)] = 300,
        epochs: Annotated[int, Field(ge=1, le=10_000)] = 100,
        updates: Annotated[int, Field(ge=0, le=1_000)] = 20,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-3,
        width: Annotated[int, Field(ge=4, le=1024)] = 64,
    ) -> None:
        self.environment, self.config, self.instruction = environment, dict(config or {}), instruction
        self.weight, self.discount, self.clipped = weight, discount, clipped
        self.demonstrations, self.epochs, self.updates = demonstrations, epochs, updates
        self.learning_rate = learning_rate
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.termination, self.relevance = Termination(width), Relevance(width)
        self.optimizer = torch.optim.Adam(self.relevance.parameters(), lr=learning_rate)
        self.instructions: list[str] = []
        """The low-level ones."""
        self.completed: dict[str, set[int]] = {}
        """D: high-level instruction → places of the low-level ones that its successes completed."""
        self.measured: dict[str, float] = {}
        self.bonus_turns = 0.0

    def setup(self, context: SetupContext) -> None:
        """Learn when low-level instructions are completed.

        Raises:
            DataError: the environment has no expert, or its problems no instruction.
        """
        episodes = demonstrations(
            self.environment, self.demonstrations, context.seed, self.config, self.instruction, f"{FIELD}.environment"
        )
        self.instructions = sorted({each.instruction for each in episodes})
        held_out, taught = episodes[::HELD_OUT], [each for n, each in enumerate(episodes) if n % HELD_OUT]
        learn_termination(self.termination, taught, self.epochs, self.learning_rate)
        self.measured = precision_and_recall(self.termination, held_out)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place; note what each row completed.

        Raises:
            DataError: a problem has no instruction.
        """
        scored = scored_with_turns(NAME, rows, problems)
        asked = [self._asked(row.asked(problems)) for row in scored]
        texts = sorted({text for row in scored for text in row.turn_observation or [] if text})
        places = {text: number for number, text in enumerate(texts)}
        with torch.no_grad():
            done = (self.termination(texts, self.instructions) > 0).tolist() if texts else []
            relevant = (self.relevance(asked, self.instructions) < math.log(2)).tolist()
        for row, high, wanted in zip(scored, asked, relevant, strict=True):
            states = [done[places[text]] if text else [] for text in row.turn_observation or []]
            newly, all_done = completions(states, wanted)
            counts = [min(each, 1) if self.clipped else each for each in newly]
            add_to_turns(row, NAME, shaped(counts, bool(row.correct), self.weight, self.discount))
            row.extras[NAME] = {"asked": high, "completed": sorted(all_done), "paid": sum(counts)}

    def _asked(self, problem: Problem) -> str:
        text = problem.info.get(self.instruction)
        if not isinstance(text, str):
            raise DataError(FIELD, f"the problem {problem.uid} has no text in info.{self.instruction}.")
        return text

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Remember what successes completed, and learn what is relevant."""
        noted = [(row, row.extras[NAME]) for row in rows if NAME in row.extras]
        self.bonus_turns = sum(each["paid"] for _, each in noted) / max(1, len(noted))
        for row, each in noted:
            if row.correct and each["completed"]:
                remember(self.completed, each["asked"], set(each["completed"]))
        if self.completed:
            high, labels = self._labels()
            for _ in range(self.updates):
                self.optimizer.zero_grad()
                self._loss(high, labels).backward()
                self.optimizer.step()
        return rows

    def _labels(self) -> tuple[list[str], Tensor]:
        """The high-level instructions of D, and bool [high, low] which low-level ones they have there."""
        high = sorted(self.completed)
        labels = torch.zeros(len(high), len(self.instructions), dtype=torch.bool)
        for row, each in enumerate(high):
            labels[row, sorted(self.completed[each])] = True
        return high, labels

    def _loss(self, high: Sequence[str], labels: Tensor) -> Tensor:
        distance = self.relevance(high, self.instructions)
        others = -torch.log(-torch.expm1(-distance.clamp(min=1e-6)))
        return (row_mean(distance, labels) + row_mean(others, ~labels)).mean() / 2

    def metrics(self) -> dict[str, float]:
        """Turns paid for an instruction in a row; instructions with a success, what they keep, and how well that is learned."""
        values = {**self.measured, "paid_turns": self.bonus_turns, "instructions": float(len(self.completed))}
        if self.completed:
            high, labels = self._labels()
            with torch.no_grad():
                agrees = (self.relevance(high, self.instructions) < math.log(2)) == labels
            values["completed"] = float(labels.sum(1).float().mean())
            values["relevance_accuracy"] = float(agrees.float().mean())
        return values

    def state_dict(self) -> dict[str, Any]:
        """Both classifiers, the optimizer, the instructions and D."""
        return {
            "termination": self.termination.state_dict(),
            "relevance": self.relevance.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "instructions": list(self.instructions),
            "completed": {high: sorted(low) for high, low in sorted(self.completed.items())},
            "measured": dict(self.measured),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.termination.load_state_dict(state["termination"])
        self.relevance.load_state_dict(state["relevance"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.instructions = list(state["instructions"])
        self.completed = {high: set(low) for high, low in state["completed"].items()}
        self.measured = dict(state["measured"])


def completions(states: Sequence[Sequence[bool]], relevant: Sequence[bool]) -> tuple[list[int], set[int]]:
    """How many relevant instructions each turn completes that none before it did, and all that were completed.

    Args:
        states: for each turn, which instructions are carried out in the state after it; empty where nothing is shown.
        relevant: of each instruction.

    >>> completions([[True, True], [], [True, False]], [True, False])
    ([1, 0, 0], {0, 1})
    """
    counts, ever = [], set[int]()
    for state in states:
        now = {place for place, holds in enumerate(state) if holds}
        counts.append(sum(relevant[place] for place in now - ever))
        ever |= now
    return counts, ever


def shaped(counts: Sequence[int], success: bool, weight: float, discount: float) -> list[float]:
    """What each turn is paid beside its reward; a success gives it all back in its last turn.

    >>> shaped([1, 0, 1], False, 0.5, 1.0), shaped([1, 0, 1], True, 0.5, 1.0), shaped([1, 0, 0], True, 0.5, 0.5)
    ([0.5, 0.0, 0.5], [0.5, 0.0, -0.5], [0.5, 0.0, -2.0])
    """
    values = [weight * count for count in counts]
    if success and values:
        last = len(values) - 1
        values[-1] -= weight * sum(count * discount ** (turn - last) for turn, count in enumerate(counts))
    return values


def remember(completed: dict[str, set[int]], high: str, low: set[int]) -> None:
    """What a success completed, added to D.

    >>> known = {"go": {1, 2}}
    >>> remember(known, "go", {2, 3}); remember(known, "put", {4}); known
    {'go': {2}, 'put': {4}}
    >>> remember(known, "go", {5}); known["go"]
    {5}
    """
    completed[high] = (completed[high] & low or low) if high in completed else low


def learn_termination(network: Termination, episodes: Sequence[Demonstration], epochs: int, rate: float) -> None:
    """Fit the classifier to demonstrations, all at once in each epoch; both labels weigh the same."""
    texts, instructions, labels, judged = _examples(episodes)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = network(texts, instructions)
        loss = binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
        (loss[labels].mean() + loss[judged & ~labels].mean()).backward()
        optimizer.step()


def precision_and_recall(network: Termination, episodes: Sequence[Demonstration]) -> dict[str, float]:
    """Of the classifier, on the last states of demonstrations against their other states and instructions."""
    if not episodes:
        return {}
    texts, instructions, labels, judged = _examples(episodes)
    with torch.no_grad():
        claimed = (network(texts, instructions) > 0) & judged
    agreed = float((claimed & labels).sum())
    return {
        "termination_precision": agreed / max(1.0, float(claimed.sum())),
        "termination_recall": agreed / max(1.0, float(labels.sum())),
    }


def _examples(episodes: Sequence[Demonstration]) -> tuple[list[str], list[str], Tensor, Tensor]:
    """Observations, instructions, bool [observations, instructions] which are carried out, and which pairs are examples.

    A last state is an example of every instruction, another state of its own episode's alone: on its way an expert may carry out others.
    """
    texts = sorted({text for each in episodes for text in each.observations})
    instructions = sorted({each.instruction for each in episodes})
    row, column = ({text: n for n, text in enumerate(names)} for names in (texts, instructions))
    labels = torch.zeros(len(texts), len(instructions), dtype=torch.bool)
    judged = torch.zeros_like(labels)
    for each in episodes:
        judged[[row[text] for text in each.observations[:-1]], column[each.instruction]] = True
        judged[row[each.observations[-1]]] = True
    for each in episodes:
        labels[row[each.observations[-1]], column[each.instruction]] = True
    return texts, instructions, labels, judged
