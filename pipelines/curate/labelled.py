"""Labelled steps out of stored completions, and out of stored episodes: Monte-Carlo targets of turns (AgentPRM, 2502.10325).

The target of a message in a state is the mean, over all turns of the problem's episodes that began in this state with this message, of the
discounted sum of the rewards from there on: Q of the policy that played. With one reward at the end it is the mean of discount^(turns
to the end) times the outcome, the paper's target; its code counts the turns from the start, and maps outcomes of -1 and 1 to 0 and 1.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.base.errors import DataError
from pipelines.curate.segments import Action, Segment, Transition, episode_of, segments_of
from pipelines.data import steps
from pipelines.data.records import Message, Problem
from pipelines.recipe.selection import Selection


def of_completion(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `info` holds of a completion's steps.

    Args:
        told: as `samples.STEPS` holds them.

    >>> of_completion([{"text": "a;", "correct": 1, "drawn": 4}, {"text": "b", "correct": 0, "drawn": 0}])
    {'steps': ['a;', 'b'], 'step_labels': [0.25, None]}
    """
    labels = [step["correct"] / step["drawn"] if step["drawn"] else None for step in told]
    return {steps.STEPS: [step["text"] for step in told], steps.LABELS: labels}


def action_targets(episodes: Sequence[Sequence[Transition]], discount: float) -> dict[Action, float]:
    """Mean return of each action over the episodes, from its turn on; a sum of rewards that a cut episode would still have had is 0.

    >>> win = [Transition("s", "right", 0.0, "t"), Transition("t", "right", 1.0, None)]
    >>> lose = [Transition("s", "right", 0.0, "t"), Transition("t", "left", 0.0, None)]
    >>> action_targets([win, lose], 0.5)
    {('s', 'right'): 0.25, ('t', 'right'): 1.0, ('t', 'left'): 0.0}
    """
    returns: dict[Action, list[float]] = defaultdict(list)
    for episode in episodes:
        following = 0.0
        own = []
        for each in reversed(episode):
            following = each.reward + discount * following
            own.append((each.action, following))
        for action, value in reversed(own):
            returns[action].append(value)
    return {action: sum(values) / len(values) for action, values in returns.items()}


def turns(
    problem: Problem, rows: Sequence[dict[str, Any]], select: Selection, seed: int
) -> Iterator[tuple[list[Message], dict[str, Any]]]:
    """Prompt and `info` of each turn of a problem's episodes that reads differently, in an order drawn by seed and problem.

    Args:
        rows: of the samples, with episodes.

    Raises:
        DataError: a row has no episode; a target is not from 0 to 1.
    """
    played = [segments_of(problem.prompt, episode_of(row), 1) for row in rows]
    targets = action_targets([[part.transitions[0] for part in episode] for episode in played], select.discount)
    for (_, message), target in targets.items():
        if not steps.is_label(target):
            raise DataError(
                "curate.sources.select",
                f"the mean return of {message!r:.60} in the episodes of {problem.uid} is {target:g}, and a label is from 0 to 1",
                "Let the environment pay an outcome from 0 to 1, at the end.",
            )
    distinct: dict[str, Segment] = {part.key: part for episode in played for part in episode if part.text.strip()}
    ordered = [distinct[key] for key in sorted(distinct)]
    random.Random(f"{seed} {problem.uid}").shuffle(ordered)
    for part in ordered:
        cut = {steps.CUT: True} if part.cut else {}
        yield part.prompt, {steps.STEPS: [part.text], steps.LABELS: [targets[part.transitions[0].action]], **cut}
