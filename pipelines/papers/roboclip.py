"""How near a whole episode is to one demonstration, by an encoder, paid when it is over.

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
from pipelines.environments._observed import shown, text_of
from pipelines.rlvr.common.turn_rewards import pay_turns
from pipelines.rlvr.scoring import verify
from pipelines.verifiers.semantic import cosines

FIELD = "rlvr.reward"


@method(
    paper="2310.07899",
    title="RoboCLIP: One Demonstration is Enough to Learn Robot Policies, on episodes in text",
    checked="official code (one similarity, paid at the end; unit vectors and text instead of video are ours)",
)
class roboclip(Reward):
    """The reward of the last turn is cos(episode, demonstration), that of every other turn 0.

    The text of an episode is its observations, with an empty line between two of them and without the agent's actions; that of an answer
    without turns is the answer without its reasoning. The demonstration is one text of the recipe, for all problems (`demonstration`), or
    the record's own, `reference`, a field of its info; sources with `text_column: observations` show what experts' episodes look like. The
    paper's similarity is the product of embeddings of video; here they are of unit length. A text that is empty, or too long for the
    encoder, gets 0. The environment's reward is the component `outcome`, and `correct` remains its verdict. The encoder is a transformers
    model by its path (with a slash), or a stage of the recipe.
    """

    label = "demonstrated"
    model_paths: ClassVar[tuple[str, ...]] = ("encoder",)
    info_fields: ClassVar[tuple[str, ...]] = ("reference",)

    def __init__(
        self,
        *,
        encoder: Annotated[str, Field(min_length=1, max_length=4096)],
        demonstration: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None,
        reference: Annotated[str, Field(pattern=r"^\w+$")] | None = None,
    ) -> None:
        if (demonstration is None) == (reference is None):
            raise RecipeError(
                FIELD, "roboclip compares with one text: set demonstration, or reference, a field of the records' info."
            )
        self.encoder, self.demonstration, self.reference = encoder, demonstration, reference

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place.

        Raises:
            DataError: the encoder cannot be loaded, or a problem has no demonstration that it can read.
        """
        verify(rows, problems)
        scored = [row for row in rows if row.score is not None]
        asked = [(row, row.asked(problems)) for row in scored]
        pairs = [(_episode(row, problem), self._shown_to(problem), self.encoder) for row, problem in asked]
        for row, cosine in zip(scored, cosines(pairs), strict=True):
            if cosine is not None and isnan(cosine):
                raise DataError(FIELD, f"the demonstration for {row.uid} is longer than {self.encoder} can read.")
            value = cosine or 0.0
            if row.turn_reward is None:
                row.score = value
            else:
                pay_turns(row, "demonstrated", [*[0.0] * (len(row.turn_reward) - 1), value])

    def _shown_to(self, problem: Problem) -> str:
        """The demonstration that a problem's episodes are compared with."""
        text = self.demonstration if self.reference is None else problem.info.get(self.reference)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{FIELD}.reference", f"the problem {problem.uid} has no text in info.{self.reference}.")
        return text


def _episode(row: Trajectory, problem: Problem) -> str:
    """What the agent was shown, or its answer where nothing was."""
    if row.turn_reward is None:
        return after_thinking(row.text)
    return text_of([*shown(problem.prompt), *filter(None, row.turn_observation or [])])[0]
