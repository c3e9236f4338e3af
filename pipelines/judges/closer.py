"""Which of two answers or episodes came closer to a goal, asked in two phases: what happens in them, then the verdict (RL-VLM-F).

After the released code of 2402.03681: the second question reads the text of the first reply and nothing else, and a reply that is none of
the three verdicts counts as unsure. Transcripts stand where the paper shows images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipelines.data.records import Message, Problem
from pipelines.judges import questions
from pipelines.judges.endpoint import Reply

Pair = tuple[Problem, str, str]
"""A problem, and two answers to it as the judge sees them."""


class CloserJudge:
    """Says which of two is closer to a goal, or that it is unsure.

    Args:
        ask: a reply to each question, in their order.
        goal: in words; "" is what the conversation asks for.
        analyse: ask in two phases; otherwise for analysis and verdict at once.
        both_orders: ask both ways round, and be unsure where the two verdicts differ. The released code asks once.
        shown: `instruction`, `reference` and `template` of `questions.analysis`; a template asks at once.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[list[Message]]], list[Reply]],
        *,
        goal: str = "",
        analyse: bool = True,
        both_orders: bool = False,
        **shown: Any,
    ) -> None:
        self.ask, self.goal, self.both_orders, self.shown = (
            ask,
            goal or "what the conversation asks for",
            both_orders,
            shown,
        )
        self.analyse = analyse and shown.get("template") is None

    def verdicts(self, pairs: Sequence[Pair]) -> list[bool | None]:
        """Whether the first of each pair is closer to the goal; None where the judge is unsure.

        Raises:
            UserError: an endpoint cannot be asked.
        """
        orders = (False, True) if self.both_orders else (False,)
        asked = [
            questions.analysis(problem, *order, goal=self.goal, label=not self.analyse, **self.shown)
            for problem, first, second in pairs
            for swapped in orders
            for order in [(second, first) if swapped else (first, second)]
        ]
        texts = [reply.text for reply in self.ask(asked)]
        if self.analyse:
            read = [place for place, text in enumerate(texts) if text]
            replies = self.ask([questions.summary(str(texts[place]), goal=self.goal) for place in read])
            texts = [None] * len(texts)
            for place, reply in zip(read, replies, strict=True):
                texts[place] = reply.text
        verdicts = [questions.read_better(text) for text in texts]
        if not self.both_orders:
            return verdicts
        return [
            first if second is not None and first is (not second) else None
            for first, second in zip(verdicts[::2], verdicts[1::2], strict=True)
        ]
