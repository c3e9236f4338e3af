"""A language model quotes the good and the bad parts of a completion, and their tokens are paid.

Presets: drlc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.data.chat import after_thinking, completion_text
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.data.step_records import token_at
from pipelines.judges import asker, questions
from pipelines.papers.drlc import spans
from pipelines.rlvr.common.judged import Judged
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward"


@method(
    paper="2401.07382",
    title="Enhancing Reinforcement Learning with Dense Rewards from Language Model Critic (DRLC, RELC)",
    checked="reconstructed (weights and place by the sheet's example; the released code pays each token whose text occurs in a quote, "
    "wherever it stands; here the tokens of the quote are found)",
    makes=("token_reward",),
)
class drlc(Judged):
    """`good` for each part of the completion that a critic quotes as good and `bad` for each bad one, on its last token.

    Only tokens are rewarded: the row's own score is 0, so use it beside another reward, `reward: [verifier, {kind: drlc, model: NAME,
    weight: 0.2}]`. `place: spread` divides a part's reward among its tokens. Quotes that do not occur in the completion give nothing; equal
    ones match successive occurrences; overlapping ones add up. A reply that cannot be parsed gives nothing, and the row keeps its other
    rewards. The critic is a `model` behind an endpoint or the model at a `path`, as for the reward `judge`, and like that reads what
    follows the reasoning; `instruction` defines good and bad. Needs an advantage that reads rewards of tokens, such as `gae` or
    `reinforce_pp`. Components: `judge_unread`, `spans_good`, `spans_bad`, `spans_lost`, `judge_tokens`, `judge_seconds`.
    """

    language_models: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        instruction: asker.Instruction = "",
        reference: bool = False,
        good: Annotated[float, Field(ge=-1000, le=1000)] = 1.0,
        bad: Annotated[float, Field(ge=-1000, le=1000)] = -1.0,
        place: Literal["last", "spread"] = "last",
        most: Annotated[int, Field(ge=1, le=1000)] = 20,
        **judge: Any,
    ) -> None:
        self.instruction, self.reference, self.most = instruction, reference, most
        self.pay, self.place = {True: good, False: bad}, place
        super().__init__(**judge)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of tokens in place.

        Raises:
            RecipeError: a row has turns.
        """
        verify(rows, problems)
        asked = [row for row in rows if row.stop != Stop.ERROR and Role.POLICY in row.role]
        if any(row.turn_reward is not None for row in asked):
            raise RecipeError(
                FIELD, "drlc reads single answers, and the rollout has turns", "Use reward: ppr, which grades turns."
            )
        replies = self.asker.ask([self._question(row, row.asked(problems)) for row in asked])
        for row in rows:
            row.score = None if row.stop == Stop.ERROR else 0.0
            row.token_reward = [0.0] * len(row.tokens)
        for row, reply in zip(asked, replies, strict=True):
            quotes = spans.read_quotes(reply.text, self.most)
            parts, lost = self._parts(row, quotes or [])
            for tokens, good in parts:
                self._add(row.token_reward or [], tokens, self.pay[good])
            row.components = row.components | {
                "judge_unread": float(quotes is None), "spans_good": float(sum(good for _, good in parts)),
                "spans_bad": float(sum(not good for _, good in parts)), "spans_lost": float(lost),
                "judge_tokens": float(reply.tokens), "judge_seconds": reply.seconds,
            }  # fmt: skip

    def _question(self, row: Trajectory, problem: Problem) -> list[dict[str, str]]:
        text = completion_text(self.tokenizer, row.sampled())
        return questions.spans(problem, text, most=self.most, instruction=self.instruction, reference=self.reference)

    def _parts(self, row: Trajectory, quotes: list[spans.Quote]) -> tuple[list[tuple[list[int], bool]], int]:
        """(places of the tokens and verdict of each quote in the row, how many quotes stand nowhere)."""
        tokens = row.sampled()
        text = self._decode(tokens)
        shown = after_thinking(completion_text(self.tokenizer, tokens)).strip()
        located, lost = spans.locate(quotes, text, text.rfind(shown))
        places = [place for place, role in enumerate(row.role) if role == Role.POLICY]
        parts = []
        for span in located:
            first, last = (token_at(end, text, tokens, self._decode) for end in (span.start + 1, span.end))
            parts.append((places[first : last + 1], span.good))
        return parts, lost

    def _add(self, token_reward: list[float], places: list[int], pay: float) -> None:
        """Pay the tokens of a part."""
        paid = places[-1:] if self.place == "last" else places
        for place in paid:
            token_reward[place] += pay / len(paid)
