"""Turns are paid what a reward model of single states says of the state that they lead to.

No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data import chat
from pipelines.data.pairs import of_state
from pipelines.data.records import Problem, Trajectory
from pipelines.environments._observed import shown
from pipelines.rlvr.common.turn_rewards import pay_turns, scored_with_turns

FIELD = "rlvr.reward"


@method(
    paper="2402.03681",
    title="RL-VLM-F: Reinforcement Learning from Vision Language Foundation Model Feedback",
    checked="official code (a reward of single observations, tanh at its end); `gain` is ours",
)
class states(Reward):
    """The reward of turn s is r(o_(s+1)), for what the environment shows after it, a picture or a text, alone.

    `model` is a reward model of states: a stage of kind reward_model on pairs of states (a sample stage with `comparisons: {states: true}`,
    `select: preferred`), or one by its path (with a slash). Its mean score s, over its heads, is paid as tanh(s), as in the released code,
    whose network ends so. `gain` pays r(o_(s+1)) - r(o_s) instead: the sum is then what the last state has over the first, so that an
    episode that ends at its goal loses nothing by being short. The paper's episodes are all equally long. The environment's reward is the
    component `outcome`, and `correct` remains its verdict. A row with a state that is longer than the model's context is unscored.
    """

    label = "states"
    pays_turns = True
    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, *, model: Annotated[str, Field(min_length=1, max_length=4096)], gain: bool = False) -> None:
        self.path, self.gain = model, gain

    def connect(self, scorer: Scorer) -> None:
        """Load the reward model.

        Raises:
            RecipeError: it writes a critique before it scores.
        """
        self.member = scorer.reward_model(self.path, FIELD)
        if self.member.critiques:
            raise RecipeError(FIELD, f"{self.path} writes a critique before it scores", "Name one without critiques.")

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        scored = scored_with_turns("states", rows, problems)
        states = [[_start(row.asked(problems)), *(row.turn_observation or [])] for row in scored]
        value = self._values({text: None for own in states for text in own if text})
        for row, own in zip(scored, states, strict=True):
            rewards = [value.get(text, 0.0) for text in own]
            if any(reward != reward for reward in rewards[1:]):
                row.score = None
                continue
            before = rewards[:-1] if self.gain else [0.0] * (len(rewards) - 1)
            pay_turns(row, "states", [after - less for after, less in zip(rewards[1:], before, strict=True)])

    def _values(self, texts: Mapping[str, None]) -> dict[str, float]:
        """The reward of each state, NaN where it cannot be read."""
        rendered = [chat.render_answer(self.member.tokenizer, of_state(text), "", "a state") for text in texts]
        if not rendered:
            return {}
        scores = self.member.score([ids for ids, _ in rendered], [start for _, start in rendered])
        return dict(zip(texts, scores.mean(1).tanh().tolist(), strict=True))


def _start(problem: Problem) -> str:
    """What the environment shows before the first turn."""
    return (shown(problem.prompt) or [""])[-1]
