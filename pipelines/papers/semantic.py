"""How near a completion is in meaning to a reference text, by an encoder.

No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.base.errors import DataError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.chat import after_thinking
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.rlvr.scoring import verify
from pipelines.verifiers.semantic import FLOOR, cosines, rescaled


@method(
    paper="2509.13081",
    title="Shaping Explanations: Semantic Reward Modeling with Encoder-Only Transformers for GRPO",
    checked="reconstructed (the cosine of the abstract; the floor is ours)",
)
class semantic(Reward):
    """max(0, (cos - floor) / (1 - floor)) of the mean-pooled vectors of completion and reference, from 0 to 1.

    The reference is the record's answer, or the text in its `info` under `reference`. `gate: true` gives 0 to completions that the record's
    verifier does not accept: a fluent explanation of an incorrect answer is near too. Only the text after the reasoning is read. An empty
    completion, and one too long for the encoder, gives 0. Beside the verifier: `reward: [verifier, {kind: semantic, weight: 0.5, encoder:
    ...}]`. The cosine is the component `cosine`. The encoder is a transformers model by its path (with a slash), or a stage of the recipe.
    """

    label = "semantic"
    model_paths: ClassVar[tuple[str, ...]] = ("encoder",)

    def __init__(
        self,
        *,
        encoder: Annotated[str, Field(min_length=1, max_length=4096)],
        floor: Annotated[float, Field(ge=-1, lt=1)] = FLOOR,
        gate: bool = True,
        reference: Annotated[str | None, Field(pattern=r"^\w+$")] = None,
    ) -> None:
        self.encoder, self.floor, self.gate, self.reference = encoder, floor, gate, reference

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score and components in place.

        Raises:
            DataError: a problem has no reference, or one that the encoder cannot read; or there is no such encoder.
        """
        verify(rows, problems)
        read = [row for row in rows if row.stop != Stop.ERROR]
        texts = [(after_thinking(row.text), self._text(problems[row.uid]), self.encoder) for row in read]
        for row, cosine in zip(read, cosines(texts), strict=True):
            if cosine is not None and isnan(cosine):
                raise DataError(
                    "rlvr.reward.encoder", f"the reference of {row.uid} is longer than {self.encoder} can read."
                )
            near = 0.0 if cosine is None else rescaled(cosine, self.floor)
            if self.gate and row.correct is None:
                row.score = None
            else:
                row.score = near if row.correct or not self.gate else 0.0
            row.components = row.components | ({} if cosine is None else {"cosine": cosine})

    def _text(self, problem: Problem) -> str:
        text = problem.answer if self.reference is None else problem.info.get(self.reference)
        if not isinstance(text, str) or not text.strip():
            where = "answer" if self.reference is None else f"info.{self.reference}"
            raise DataError("rlvr.reward.reference", f"the problem {problem.uid} has no text in {where}.")
        return text
