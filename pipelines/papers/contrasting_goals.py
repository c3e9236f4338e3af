"""How much nearer a state is to a goal in words than to its opposite, by an encoder.

No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.chat import after_thinking
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.common.turn_rewards import pay_turns
from pipelines.rlvr.scoring import verify
from pipelines.verifiers.semantic import cosines

FIELD = "rlvr.reward"
Goal = Annotated[str, Field(min_length=1, max_length=10_000)]
Weight = Annotated[float, Field(ge=0, le=1e3)]
Contrast = Annotated[float, Field(ge=-1e3, le=1e3)]


@method(
    paper="2412.15544",
    title="VLM-RL: A Unified Vision Language Models and Reinforcement Learning Framework for Safe Autonomous Driving, its language goals",
    checked="official code (the contrast, its bounds and its scale; states in text are ours)",
)
class contrasting_goals(Reward):
    """(c - low) / (high - low) with c = alpha cos(state, wanted) - beta cos(state, unwanted), at least low and at most high; from 0 to 1.

    A state is the observation after a turn, and each turn is rewarded for the state that it leads to, in place of the environment's reward,
    which is the component `outcome`. An answer without turns is a state itself, without its reasoning. `wanted` and `unwanted` are
    sentences. The released code has weights of 1 and bounds -0.03 and 0, with which a state that is as near to the wanted goal as to its
    opposite gets the full reward; CLIP's cosines vary little, and those of other encoders need wider bounds. A text that is empty, or too
    long for the encoder, gets 0. The paper's hierarchy multiplies this by factors of the vehicle's state: `operation: multiply` of a
    composite reward. `correct` stays the verifier's or the environment's verdict. The encoder is a transformers model by its path (with a
    slash), or a stage of the recipe.
    """

    label = "contrast"
    model_paths: ClassVar[tuple[str, ...]] = ("encoder",)

    def __init__(
        self,
        *,
        encoder: Annotated[str, Field(min_length=1, max_length=4096)],
        wanted: Goal,
        unwanted: Goal,
        alpha: Weight = 1.0,
        beta: Weight = 1.0,
        low: Contrast = -0.03,
        high: Contrast = 0.0,
    ) -> None:
        if low >= high:
            raise RecipeError(
                f"{FIELD}.low",
                f"{low} is not below high, which is {high}",
                "Set low below high: the reward is scaled from low to high.",
            )
        self.encoder, self.goals, self.weights, self.bounds = encoder, (wanted, unwanted), (alpha, beta), (low, high)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place.

        Raises:
            DataError: the encoder cannot be loaded, or cannot read a goal.
        """
        verify(rows, problems)
        scored = [row for row in rows if row.score is not None]
        states = [
            [after_thinking(row.text)] if row.turn_reward is None else row.turn_observation or [] for row in scored
        ]
        pairs = [(state, goal, self.encoder) for own in states for state in own for goal in self.goals]
        near = iter(cosines(pairs))
        for row, own in zip(scored, states, strict=True):
            values = [self._paid(next(near), next(near)) for _ in own]
            if row.turn_reward is None:
                row.score = values[0]
            else:
                pay_turns(row, "contrast", values)

    def _paid(self, wanted: float | None, unwanted: float | None) -> float:
        if wanted is None or unwanted is None:
            return 0.0
        if isnan(wanted) or isnan(unwanted):
            raise DataError(
                FIELD, f"wanted or unwanted is longer than {self.encoder} can read", "Say it in a sentence."
            )
        return contrast(wanted, unwanted, self.weights, self.bounds)


def contrast(wanted: float, unwanted: float, weights: tuple[float, float], bounds: tuple[float, float]) -> float:
    """The reward of a state with these cosines.

    >>> [round(contrast(0.2, other, (1.0, 1.0), (-0.03, 0.0)), 6) for other in (0.1, 0.2, 0.22, 0.3)]
    [1.0, 1.0, 0.333333, 0.0]
    """
    value, (low, high) = weights[0] * wanted - weights[1] * unwanted, bounds
    return (min(max(value, low), high) - low) / (high - low)
