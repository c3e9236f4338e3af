"""A judge whose model runs in this process, with an endpoint's manners: equal questions once, no answer where none can be had."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from pipelines.contract.lent_models import LanguageModel
from pipelines.data.records import Message
from pipelines.judges.endpoint import Reply


class LocalJudge:
    """Asks a language model by the scoring hook.

    Nothing is kept on disk: equal questions get equal replies, so a resumed run asks again and hears the same.

    Args:
        model: what answers.
        temperature: 0 is greedy.
        max_tokens: of an answer.
    """

    def __init__(self, model: LanguageModel, *, temperature: float, max_tokens: int) -> None:
        self.model, self.temperature, self.max_tokens = model, temperature, max_tokens

    def ask(self, questions: Sequence[list[Message]], sample: int = 0) -> list[Reply]:
        """A reply to every question, in their order; one that does not fit the model's context has none.

        Args:
            sample: number of the draw; each has replies of its own.
        """
        keys = [json.dumps(question) for question in questions]
        distinct = dict(zip(keys, questions, strict=True))
        began = time.perf_counter()
        answers = self.model.reply(
            list(distinct.values()), temperature=self.temperature, max_tokens=self.max_tokens, sample=sample
        )
        seconds = (time.perf_counter() - began) / max(1, len(distinct))
        replies = {
            key: Reply(text, tokens, seconds, problem="" if text is not None else "longer than the context")
            for key, (text, tokens) in zip(distinct, answers, strict=True)
        }
        return [replies[key] for key in keys]
