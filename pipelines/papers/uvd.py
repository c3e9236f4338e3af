"""UVD: sub-goals of one demonstration by phase shifts of an encoder's distances, and turns paid for coming nearer to the next one.

arXiv 2310.08581. No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.environments._observed import SEPARATOR, shown
from pipelines.rlvr.common.turn_rewards import pay_turns, scored_with_turns

FIELD = "rlvr.reward"
NAME = "uvd"
LEAST_DISTANCE = 1e-7
"""Distances between two sub-goals are at least this where they divide, as in the official code."""
Weight = Annotated[float, Field(ge=0, le=1e3)]


@method(
    paper="2310.08581",
    title="Universal Visual Decomposer (UVD): its sub-goals and its reward, on observations in text",
    checked="official code (sub-goals); paper (the reward, equation 6 of its appendix: no code of the RL part is released)",
    provenance=("demonstrations", "model"),
)
class uvd(Reward):
    """Turn t from o_(t-1) to o_t is paid for coming nearer to the present sub-goal g_i of a demonstration, and for reaching it.

        r_t = progress_weight clip(D(o_(t-1), g_i) - D(o_t, g_i), -1, 1) + subgoal_reward [D(o_t, g_i) < threshold]
              + goal_reward [D(o_t, g_m) < threshold],      D(o, g_i) = |e(o) - e(g_i)| / |e(g_(i-1)) - e(g_i)|

    e(o) is the encoder's unit vector of an observation, g_(-1) the demonstration's first observation, and g_m its last. The sub-goals are
    found from the end (`subgoals`): the distance to a sub-goal should fall from turn to turn, and the last local maximum before it is the
    sub-goal before. Reaching a sub-goal makes the next one the present one, from the next turn on; at g_m the reward ends, and
    later turns get 0. The weights and the threshold are the paper's. For frames of video it has `min_interval: 18` and `smoothing: 0.08`;
    the defaults here are for turns, which are few. Unit vectors are ours, the paper has the distance of raw features. Not here: a policy
    that is shown its sub-goal, and the number of steps that the demonstration took to a sub-goal as a second condition.

    The demonstration is a list of observations, the first included: of the recipe, for all problems (`demonstration`), or the record's own,
    `reference`, a field of its info: a list, or a text with an empty line between two observations, as sources with `text_column:
    observations` write it. Observations that repeat the one before are left out. A turn that shows nothing, or more than the encoder can
    read, counts as one that changes nothing. The environment's reward is the component `outcome`, `correct` remains its verdict, and the
    component `subgoals_reached` is the share of sub-goals that were reached. The encoder is a transformers model by its path (with a
    slash), or a stage of the recipe. Rows without turns are refused.
    """

    pays_turns = True
    model_paths: ClassVar[tuple[str, ...]] = ("encoder",)
    info_fields: ClassVar[tuple[str, ...]] = ("reference",)

    def __init__(
        self,
        *,
        encoder: Annotated[str, Field(min_length=1, max_length=4096)],
        demonstration: Annotated[list[Annotated[str, Field(max_length=100_000)]], Field(min_length=2, max_length=1000)]
        | None = None,
        reference: Annotated[str, Field(pattern=r"^\w+$")] | None = None,
        min_interval: Annotated[int, Field(ge=0, le=1000)] = 1,
        smoothing: Annotated[float, Field(gt=0, le=100)] | None = None,
        threshold: Annotated[float, Field(gt=0, lt=1)] = 0.2,
        progress_weight: Weight = 5.0,
        subgoal_reward: Weight = 3.0,
        goal_reward: Weight = 6.0,
    ) -> None:
        if (demonstration is None) == (reference is None):
            raise RecipeError(
                FIELD, "uvd has one demonstration: set demonstration, or reference, a field of the records' info."
            )
        self.encoder, self.demonstration, self.reference = encoder, demonstration, reference
        self.min_interval, self.smoothing = min_interval, smoothing
        self.threshold, self.weights = threshold, (progress_weight, subgoal_reward, goal_reward)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place.

        Raises:
            DataError: the encoder cannot be loaded, or a problem has no demonstration of two observations that it can read.
            RecipeError: a row has no turns.
        """
        from pipelines.verifiers._encoder import encoder

        for row in scored_with_turns(NAME, rows, problems):
            problem = row.asked(problems)
            start, goals = decomposed(self.encoder, self._shown_to(problem), self.min_interval, self.smoothing)
            before = [start, *goals[:-1]]
            lengths = (goals - torch.stack(before)).norm(dim=-1).clamp(min=LEAST_DISTANCE)
            # a row is encoded by itself: what it is paid does not depend on the rows that are scored with it
            texts = [(shown(problem.prompt) or [""])[-1], *(row.turn_observation or [""] * len(row.turn_reward or []))]
            states = [start]
            for vector in encoder(self.encoder).embed(texts).double():
                states.append(vector if vector.any() else states[-1])
            distances = (torch.stack(states[1:])[:, None] - goals).norm(dim=-1) / lengths
            paid, reached = shaped(distances.tolist(), self.threshold, self.weights)
            pay_turns(row, NAME, paid)
            row.components["subgoals_reached"] = reached / len(goals)

    def _shown_to(self, problem: Problem) -> tuple[str, ...]:
        """The observations of a problem's demonstration, without those that are empty or repeat the one before.

        Raises:
            DataError: there are fewer than two.
        """
        texts = self.demonstration if self.reference is None else problem.info.get(self.reference)
        if isinstance(texts, str):
            texts = texts.split(SEPARATOR)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{FIELD}.reference", f"the problem {problem.uid} has no texts in info.{self.reference}.")
        kept = tuple(text for text, _ in groupby(text for text in texts if text.strip()))
        if len(kept) < 2:
            raise DataError(
                FIELD,
                f"the demonstration for {problem.uid} shows fewer than two different observations",
                "Give what the expert is shown before its first turn and after each of its turns.",
            )
        return kept


@lru_cache(maxsize=4096)
def decomposed(
    path: str, observations: tuple[str, ...], min_interval: int, smoothing: float | None
) -> tuple[Tensor, Tensor]:
    """The vectors of a demonstration's first observation and of its sub-goals, by nothing but the arguments.

    Args:
        path: of the encoder.

    Returns:
        [hidden] and [sub-goals, hidden], float64; not to be changed.

    Raises:
        DataError: the encoder cannot be loaded, or cannot read an observation.
    """
    from pipelines.verifiers._encoder import encoder

    vectors = encoder(path).embed(list(observations)).double()
    unread = (~vectors.any(-1)).nonzero().flatten().tolist()
    if unread:
        raise DataError(
            FIELD, f"observation {unread[0] + 1} of a demonstration is longer than {path} can read", "Shorten it."
        )
    return vectors[0], vectors[subgoals(vectors, min_interval, smoothing)]


def subgoals(vectors: Tensor, min_interval: int, smoothing: float | None) -> list[int]:
    """Places of the sub-goals of a demonstration, in order; the last is its end (`embedding_decomp` of uvd/decomp/decomp.py).

    Equation 3 of the paper takes the observation before the distance's local maximum, the official code, as here, the maximum itself.

    Args:
        vectors: [observations, hidden].
        min_interval: two sub-goals, and the start and the first, are more than so many observations apart.
        smoothing: g of the kernel exp(-g (s - t)^2) that averages distances of observations s and t; None leaves them.

    >>> road = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0], [-1.0, 1.0]])
    >>> subgoals(road, 1, None), subgoals(road, 2, None)
    ([2, 5], [5])
    """
    places = [len(vectors) - 1]
    while True:
        distances = (vectors[: places[-1] + 1] - vectors[places[-1]]).norm(dim=-1)
        curve = (distances if smoothing is None else _smoothed(distances, smoothing)).tolist()
        inside = range(min_interval + 1, places[-1] - min_interval)
        peaks = [t for t in inside if curve[t - 1] < curve[t] > curve[t + 1]]
        if not peaks:
            return places[::-1]
        places.append(peaks[-1])


def _smoothed(curve: Tensor, sharpness: float) -> Tensor:
    """Nadaraya-Watson regression of a curve on its places, with a Gaussian kernel; [length]."""
    place = torch.arange(len(curve), dtype=curve.dtype)
    kernel = torch.exp(-sharpness * (place[:, None] - place) ** 2)
    return kernel @ curve / kernel.sum(-1)


def shaped(
    distances: Sequence[Sequence[float]], threshold: float, weights: tuple[float, float, float]
) -> tuple[list[float], int]:
    """What each turn is paid, and how many sub-goals were reached; all of them where the last one was.

    Args:
        distances: D of each state, the first before any turn, to each sub-goal; [turns + 1, sub-goals].
        weights: of coming nearer, of a sub-goal that is reached, and of the last one.

    >>> shaped([[1.0, 2.0], [0.5, 1.5], [0.125, 1.0], [1.0, 0.5], [2.0, 0.125], [0.0, 0.0]], 0.2, (4.0, 3.0, 6.0))
    ([2.0, 4.5, 2.0, 10.5, 0.0], 2)
    """
    present, paid = 0, []
    for before, after in pairwise(distances):
        if present == len(after):
            paid.append(0.0)
            continue
        arrived, ended = after[present] < threshold, after[-1] < threshold
        nearer = min(1.0, max(-1.0, before[present] - after[present]))
        paid.append(weights[0] * nearer + weights[1] * arrived + weights[2] * ended)
        present = len(after) if ended else present + arrived
    return paid, present
