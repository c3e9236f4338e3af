"""Pairs of parts of stored episodes, labelled by partial return or by regret (Knox et al., 2206.02231; 2310.02456).

The regret of a part is the sum over its turns of V(s) - Q(s, a): where the next state is certain, the value of its first state less its
rewards and the value of its last state. The papers take the values from the task's own reward by value iteration. Here they are those of
the task as the problem's episodes show it: Q is the mean over what followed a message in a state, V the best Q among the messages that
were tried there.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data import pairs, samples
from pipelines.data.records import Message, Problem
from pipelines.recipe.selection import Selection

SWEEPS, CONVERGED = 10_000, 1e-9
"""Of value iteration: most sweeps, and the change of a value under which it has ended."""
Action = tuple[str, str]
"""Key of a state, and the message."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One turn of an episode."""

    state: str
    message: str
    reward: float
    next: str | None
    """Key of the state after it, None where the environment ended the episode."""

    @property
    def action(self) -> Action:
        """What was done where."""
        return self.state, self.message


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an episode."""

    prompt: list[Message]
    turns: list[Message]
    """Before its last message."""
    text: str
    cut: bool
    transitions: tuple[Transition, ...]

    @property
    def key(self) -> str:
        """Equal for parts that read alike."""
        return json.dumps([self.prompt, self.turns, self.text])


def segments_of(prompt: Sequence[Message], episode: dict[str, Any], length: int) -> list[Segment]:
    """All parts of `length` turns, and those shorter ones that the environment ended.

    Args:
        episode: as `samples.EPISODE` holds it.
    """
    turns, end = episode["turns"], episode["end"]
    states = [*(turn["state"] for turn in turns), end]
    steps = [
        Transition(first, turn["message"], float(turn["reward"]), second)
        for turn, (first, second) in zip(turns, pairwise(states), strict=True)
    ]
    spoken: list[Message] = []
    for turn in turns:
        spoken.append({"role": "assistant", "content": turn["message"]})
        spoken.append({"role": turn["role"], "content": turn["reply"]})
    parts = []
    for first in range(len(turns)):
        last = min(first + length, len(turns)) - 1
        if last - first + 1 == length or end is None:
            text, cut = turns[last]["message"], bool(turns[last]["cut"])
            before = [*prompt, *spoken[: 2 * first]]
            parts.append(Segment(before, spoken[2 * first : 2 * last], text, cut, tuple(steps[first : last + 1])))
    return parts


def action_values(transitions: Sequence[Transition], discount: float) -> dict[Action, float]:
    """Q of each action by value iteration over what was seen; the best action of a state has its value.

    A turn into a state that nothing is known of (an episode's last one, cut off, where no other went on from there) is left out.

    Raises:
        DataError: the values do not converge: with `discount: 1`, a way round in a circle pays or costs something.

    >>> a, b = Transition("s", "right", 0.0, "t"), Transition("t", "down", 1.0, None)
    >>> action_values([a, b, Transition("s", "left", 0.0, "s"), Transition("t", "up", 0.0, "?")], 0.9)
    {('s', 'right'): 0.9, ('t', 'down'): 1.0, ('s', 'left'): 0.81}
    """
    known = list(transitions)
    while True:
        begun = {each.state for each in known}
        kept = [each for each in known if each.next is None or each.next in begun]
        if len(kept) == len(known):
            break
        known = kept
    outcomes: dict[Action, list[Transition]] = defaultdict(list)
    for each in known:
        outcomes[each.action].append(each)
    value = {each.state: 0.0 for each in known}
    for _ in range(SWEEPS):
        quality = {
            action: sum(each.reward + discount * (0.0 if each.next is None else value[each.next]) for each in followed)
            / len(followed)
            for action, followed in outcomes.items()
        }
        best = state_values(quality)
        change = max((abs(best[state] - value[state]) for state in best), default=0.0)
        value = best
        if change <= CONVERGED:
            return quality
    raise DataError(
        "curate.sources.select.discount",
        "in the stored episodes a way that returns to its first state pays or costs something, so its states have no value",
        "Use a discount below 1, or prefer: partial_return.",
    )


def state_values(quality: dict[Action, float]) -> dict[str, float]:
    """State → value of the best of its actions."""
    value: dict[str, float] = {}
    for (state, _), worth in quality.items():
        value[state] = max(worth, value.get(state, worth))
    return value


def partial_return(part: Sequence[Transition], discount: float) -> float:
    """Discounted sum of the rewards.

    >>> partial_return([Transition("s", "a", 1.0, "t"), Transition("t", "b", 2.0, None)], 0.5)
    2.0
    """
    return sum(discount**place * each.reward for place, each in enumerate(part))


def regret(part: Sequence[Transition], quality: dict[Action, float], discount: float) -> float | None:
    """Discounted sum of V(s) - Q(s, a), 0 where every turn is the best that is known; None where one has no known value.

    >>> quality = {("s", "right"): 0.9, ("s", "left"): 0.81}
    >>> round(regret([Transition("s", "left", 0.0, "s"), Transition("s", "right", 0.0, "t")], quality, 0.9), 6)
    0.09
    """
    value = state_values(quality)
    if any(each.action not in quality for each in part):
        return None
    return sum(discount**place * (value[each.state] - quality[each.action]) for place, each in enumerate(part))


def couples(
    problem: Problem, rows: Sequence[dict[str, Any]], select: Selection, seed: int
) -> Iterator[tuple[list[Message], dict[str, Any]]]:
    """Prompt and `info` of each pair of a problem, drawn by seed and problem; no part is in two of them.

    Args:
        rows: of the samples, with episodes.

    Raises:
        DataError: a row has no episode; as `action_values`.
    """
    parts = {part.key: part for row in rows for part in segments_of(problem.prompt, episode_of(row), select.length)}
    ordered = [parts[key] for key in sorted(parts)]
    # Values come from whole episodes: a part at an episode's end may be too short to be one itself.
    steps = [
        each for row in rows for part in segments_of(problem.prompt, episode_of(row), 1) for each in part.transitions
    ]
    quality = action_values(steps, select.discount) if select.prefer == "regret" else {}
    scored = []
    for part in ordered:
        worth: float | None = partial_return(part.transitions, select.discount)
        if select.prefer == "regret":
            lost = regret(part.transitions, quality, select.discount)
            worth = None if lost is None else 0.0 - lost
        if worth is not None:
            scored.append((worth, part))
    random.Random(f"{seed} {problem.uid}").shuffle(scored)
    while scored:
        first = scored.pop()
        other = next((i for i, each in enumerate(scored) if abs(each[0] - first[0]) > select.margin + CONVERGED), None)
        if other is not None:
            (low, worse), (high, better) = sorted([first, scored.pop(other)], key=lambda each: each[0])
            yield better.prompt, pair_info(better, worse, select) | {"chosen_score": high, "rejected_score": low}


def episode_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row's episode, as `samples.EPISODE` holds it.

    Raises:
        DataError: it has none.
    """
    told = row.get(samples.EPISODE)
    if told is None:
        raise DataError(
            "curate.sources.select",
            "segments are parts of episodes, and the stage sampled single answers",
            "Give its stage `episodes: {max_turns: 10}`, or choose another selection.",
        )
    episode: dict[str, Any] = json.loads(told)
    return episode


def importance(part: Sequence[Transition]) -> list[float]:
    """1 for each turn that changed the state, 0 for each that left it as it was.

    >>> importance([Transition("s", "wait", 0.0, "s"), Transition("s", "on", 0.0, None)])
    [0.0, 1.0]
    """
    return [float(each.next != each.state) for each in part]


def pair_info(better: Segment, worse: Segment, select: Selection) -> dict[str, Any]:
    """What `info` holds of a pair of parts."""
    info: dict[str, Any] = {pairs.CHOSEN: better.text, pairs.REJECTED: worse.text}
    if better.prompt != worse.prompt:
        info[pairs.REJECTED_PROMPT] = worse.prompt
    both = (better, worse)
    info |= {name: part.turns for name, part in zip(pairs.TURNS, both, strict=True) if part.turns}
    if select.importance is not None:
        info |= {name: importance(part.transitions) for name, part in zip(pairs.IMPORTANCE, both, strict=True)}
    return info | {name: True for name, part in zip(pairs.CUT, both, strict=True) if part.cut}
