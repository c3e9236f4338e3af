"""Answers of a model behind an endpoint, such as a teacher, as the rows of a sample stage."""

from __future__ import annotations

from typing import Any

from pipelines.contract.streams import stream_ids
from pipelines.data import chat, marks
from pipelines.data.control import as_text, encode
from pipelines.data.records import Problem, Stop
from pipelines.judges.client import Answer
from pipelines.judges.model_endpoint import EndpointModel, Request, Usage, full_text
from pipelines.sample.settings import Sample
from pipelines.sample.shards import Shard, columns_of
from pipelines.sample.summary import COMPLETION_TOKENS, PROMPT_TOKENS
from pipelines.stage.report import Report


class EndpointDrawer:
    """Asks the model of `settings.model`. What was answered is kept as it comes, so a restart asks for the rest alone.

    The tokens of a row are those of the recipe's own tokenizer, for lengths; nothing says how likely the model found them.

    Args:
        tokenizer: of the model that the data was made for.
        shards: how many there are, for progress.
    """

    def __init__(self, settings: Sample, tokenizer: Any, seed: int, report: Report, shards: int) -> None:
        assert settings.model is not None
        self.settings, self.tokenizer, self.seed = settings, tokenizer, seed
        self.report, self.shards = report, shards
        self.model = EndpointModel(settings.model, "sample.model")

    def __enter__(self) -> EndpointDrawer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def shard(self, problems: list[Problem], number: int) -> Shard:
        """The rows of the problems of a shard; answers are not verified yet.

        Raises:
            UserError: the endpoint refuses us, or gives no answers.
        """
        count, own = self.settings.k, self.model.settings
        requests = [
            Request(problem.prompt, self.settings.sampling, seed, problem.tools or ())
            for problem in problems
            for seed in self._seeds(problem)
        ]

        def told(done: int) -> None:
            what = f"asking {own.name}: {self.model.usage.shown(own.price)}"
            self.report.progress(number + done / len(requests), self.shards, what, unit="shard")

        answers = self.model.ask(requests, told)
        self._tell(answers, number)
        prompts = chat.render_prompts(self.tokenizer, [p.prompt for p in problems], [p.tools for p in problems])
        texts = ["" if answer.problem else marks.unnamed(full_text(answer)) for answer in answers]
        rows: dict[str, list[Any]] = {
            "sample": list(range(count)) * len(problems),
            "completion_ids": encode(self.tokenizer, as_text(self.tokenizer, texts)),
            "logp": [None] * len(answers),
            "entropy": [None] * len(answers),
            "text": texts,
            "stop": [stop_of(answer).name.lower() for answer in answers],
            PROMPT_TOKENS: [answer.prompt_tokens for answer in answers],
            COMPLETION_TOKENS: [answer.completion_tokens for answer in answers],
        }
        return Shard(columns_of(problems, prompts), rows)

    def _seeds(self, problem: Problem) -> list[int]:
        """Of the problem's answers; greedy ones are all the same draw."""
        if self.settings.sampling.temperature == 0:
            return [0] * self.settings.k
        return stream_ids(self.settings.k, "sample", self.seed, problem.uid)

    def _tell(self, answers: list[Answer], number: int) -> None:
        usage = Usage()
        for answer in answers:
            usage.add(answer)
        price = self.model.settings.price
        told = usage.metrics(price)
        self.report.metrics(number, {name.replace("usage", "shard"): value for name, value in told.items()})
        refused = [answer.problem for answer in answers if answer.problem]
        if refused:
            self.report.event("requests were refused; their rows stay unscored", requests=len(refused), why=refused[0])
        if usage.uncounted:
            self.report.event("the endpoint counts no tokens (no usage)", answers=usage.uncounted)


def stop_of(answer: Answer) -> Stop:
    """Why an answer ended.

    >>> stop_of(Answer("4", finish="length")), stop_of(Answer("4", finish="stop")), stop_of(Answer(None, problem="status 400"))
    (<Stop.LENGTH: 1>, <Stop.END: 0>, <Stop.ERROR: 4>)
    """
    if answer.problem:
        return Stop.ERROR
    return Stop.LENGTH if answer.finish == "length" else Stop.END
