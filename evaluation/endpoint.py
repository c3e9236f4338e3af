"""A model behind an OpenAI-compatible server as an lm-eval model: it answers questions, and says nothing of how likely answers are."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from evaluation.benchmark_files import NEEDS_LIKELIHOODS
from evaluation.benchmark_size import MAX_TOKENS
from evaluation.generation import sampling_of, unknown
from pipelines.base.errors import RecipeError
from pipelines.contract.model_endpoint import ModelEndpoint
from pipelines.contract.streams import stream_ids
from pipelines.data.chat import THINK_END, after_thinking
from pipelines.judges.client import Answer
from pipelines.judges.model_endpoint import EndpointModel, Request, full_text
from pipelines.verifiers._code import program

MOST_STOPS = 4
"""Texts that end an answer, of those that a server is told; all of them end it here."""
FENCE = "```"
PYTHON = ("python", "py", "python3")


class EndpointLM(LM):
    """Asks messages, as the protocol has them; equal questions are paid for once, in whatever run.

    Args:
        field: of the recipe, for errors.
        seed: of the sampled answers.
        tokenizer: of a model in the same table, for lengths in its tokens; without one there are none.
    """

    def __init__(self, settings: ModelEndpoint, field: str, *, seed: int, tokenizer: Any = None) -> None:
        super().__init__()
        self.model, self.field, self.seed = EndpointModel(settings, field), field, seed
        self.tokenizer = Lengths(tokenizer)
        self.progress: Any = None
        self.system_prompt: str | None = None
        self.chats, self.prefill, self.thinks = True, None, False
        self.drawn: dict[tuple[str | None, int | None], list[int]] = {}
        """(task, question) → tokens of each of its answers as the server counts them, thoughts included."""
        self.truncated: dict[tuple[str | None, int | None], list[bool]] = {}
        self.spent: dict[tuple[str | None, int | None], list[tuple[int, int]]] = {}
        self.refused: Counter[str] = Counter()
        """Why the server answered some questions not at all; they are incorrect."""

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's own records."""
        return self.model.settings.name

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The server has one of its own."""
        return ""

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The messages as JSON; a request has the tools of its question."""
        return json.dumps(chat_history)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Not to be had.

        Raises:
            RecipeError: always; `whetstone plan` says so before.
        """
        raise RecipeError(
            self.field,
            f"{requests[0].task_name} {NEEDS_LIKELIHOODS}",
            "Evaluate it in a stage without endpoints.",
        )

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Not to be had, as `loglikelihood`."""
        self.loglikelihood(requests)
        return []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; repeats of a request are drawn independently.

        Raises:
            RecipeError: a task asks for settings of generation that no server knows.
            UserError: the server refuses us, or gives no answers.
        """
        repeats: Counter[tuple[str | None, int | None]] = Counter()
        asked, ends, prefixes = [], [], []
        for request in requests:
            context, settings = request.args[0], dict(normalize_gen_kwargs(request.args[1], MAX_TOKENS))
            if odd := unknown(settings):
                raise RecipeError(
                    self.field, f"{request.task_name} sets {odd[0]}, which no endpoint knows", "Leave it out."
                )
            messages = json.loads(context)
            prefix = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
            until = [] if _opens_fence(prefix) else [end for end in _listed(settings.get("until")) if end]
            sampling, question = sampling_of(settings), (request.task_name, request.doc_id)
            seed = stream_ids(1, "evaluate", self.seed, *question, repeats[question])[0] if sampling.temperature else 0
            repeats[question] += 1
            tools = _tools(request.doc)
            asked.append(Request(messages, sampling, seed, tools, until[:MOST_STOPS]))
            ends.append(until)
            prefixes.append(prefix)

        def told(done: int) -> None:
            if self.progress:
                self.progress(done, len(requests))

        answers = self.model.ask(asked, told)
        return [self._text(*each) for each in zip(requests, answers, ends, prefixes, strict=True)]

    def _text(self, request: Instance, answer: Answer, until: list[str], prefix: str) -> str:
        """An answer as the benchmark reads it; notes what it took, and whether it was cut."""
        question = (request.task_name, request.doc_id)
        if answer.problem:
            self.refused[answer.problem] += 1
        text = full_text(answer)
        cut = answer.finish == "length" and not any(end in text for end in until)
        self.truncated.setdefault(question, []).append(cut)
        if answer.completion_tokens is not None:
            self.drawn.setdefault(question, []).append(answer.completion_tokens)
            self.thinks = True
        final_text = str(
            postprocess_generated_text(text, stop=until, think_end_token=THINK_END if THINK_END in text else None)
        )
        return _after_prefix(after_thinking(text), prefix) if prefix else final_text


class Lengths:
    """Stands where lm-eval models have a tokenizer: counts tokens with somebody else's."""

    chat_template = "the server's own"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.counts = tokenizer, tokenizer is not None

    def __call__(self, text: str, **options: Any) -> Any:
        """`input_ids` of a text, none without a tokenizer."""
        return self.tokenizer(text, **options) if self.counts else {"input_ids": []}


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _opens_fence(text: str) -> bool:
    return text.count(FENCE) % 2 == 1


def _after_prefix(text: str, prefix: str) -> str:
    """What follows the start of an answer that a task would have written for the model; a server lets a model begin itself.

    >>> _after_prefix("Sure:\\n```python\\nx = 1\\n```\\nDone.", "```python\\n"), _after_prefix("Answer: 4", "Answer:")
    ('x = 1', ' 4')
    """
    return program(text, PYTHON) if _opens_fence(prefix) else text.removeprefix(prefix)


def _tools(doc: Any) -> list[dict[str, Any]]:
    """JSON schemas of the tools that a question offers, in its column `tools` or that of its `info`: a list, or JSON text of one."""
    if not isinstance(doc, dict):
        return []
    info = doc.get("info")
    info = json.loads(info) if isinstance(info, str) and info.strip() else info
    tools = doc.get("tools") or (info.get("tools") if isinstance(info, dict) else None)
    tools = json.loads(tools) if isinstance(tools, str) and tools.strip() else tools
    return list(tools) if isinstance(tools, list) else []
