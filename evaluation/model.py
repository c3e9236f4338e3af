"""A checkpoint as an lm-eval model: generation through the training sampler, log-likelihoods through the trainer's passes."""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

from evaluation.generation import sampling_of, unknown
from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.contract.rollout import Completion, Sampler
from pipelines.contract.sampling import Sampling
from pipelines.data.chat import THINK_END, completion_text, render_text
from pipelines.data.control import BREAK, as_text, encode
from pipelines.data.marks import FIRST_ID, PLACE
from pipelines.data.records import Stop
from pipelines.engine.distribution import generator
from pipelines.engine.guided import with_base
from pipelines.engine.models import stop_ids
from pipelines.engine.policy import Policy
from pipelines.engine.ranks import Ranks
from pipelines.engine.sampler import TorchSampler

log = logging.getLogger("whetstone.evaluation")

_MARKED = re.compile(f"[{BREAK}{PLACE}]")
TOKENS_PER_ROW = 32
"""Tokens of a pass over given texts, per row that is decoded side by side."""
Cost = tuple[int, int]
"""Of an answer, where the stage searches: tokens drawn for it, and tokens read to score them."""


class Answer(NamedTuple):
    """What is kept of a completion."""

    tokens: array[int]
    """Four bytes each: a benchmark's answers are in memory together."""
    stop: Stop


@dataclass(frozen=True)
class Batch:
    """Requests that are answered side by side."""

    number: int
    """Among all batches that the model is asked, from 1."""
    call: int
    """How often answers were asked for before, this time included; a task asks for all of its answers at once."""
    places: list[int]
    """Of the requests, among all of the call."""
    contexts: list[list[int]]
    """Token ids."""
    docs: list[dict[str, Any]]
    """The requests' questions as the benchmark has them."""
    until: list[str]
    """Texts that end an answer."""
    sampling: Sampling


class SamplerLM(HFLM):
    """HFLM that decodes all requests side by side over a shared-prefix cache, and scores given texts with what they share computed once.

    Greedy answers are those of HFLM, token for token (tested); sampled ones come from a generator that
    depends on the seed only.

    Args:
        model: a causal LM on its device, or two as one.
        tokenizer: with the chat template used in training.
        batch_size: rows decoded side by side.
        dtype: "float32" or "bfloat16", as for `TorchSampler`.
        seed: of the sampled answers.
        progress: called with (done, total) answers, of those that are this process's.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int,
        dtype: str = "float32",
        seed: int = 0,
        progress: Any = None,
    ) -> None:
        mixed = None if dtype == "float32" else dtype
        super().__init__(
            pretrained=model, tokenizer=tokenizer, batch_size=batch_size, backend="causal", mixed_precision_dtype=mixed
        )
        self.seed, self.progress = seed, progress
        self.batches, self.calls = 0, 0
        """How many batches were answered, and how often answers were asked for."""
        self.ranks = Ranks()
        """The processes that share the requests; each has a model like this one."""
        self.system_prompt: str | None = None
        """The system prompt that the model was trained with."""
        self.chats = False
        """Whether requests come from the chat template, which writes the special tokens itself."""
        self.prefill: str | None = None
        """What every answer begins with, after the generation prompt."""
        self.drawn: dict[tuple[str | None, int | None], list[int]] = {}
        """(task, question) → tokens of each of its answers, their thoughts included, which lm-eval's texts lack."""
        self.truncated: dict[tuple[str | None, int | None], list[bool]] = {}
        """(task, question) → whether each of its answers was cut at the token limit, before its end token or a text that ends it."""
        self.spent: dict[tuple[str | None, int | None], list[Cost]] = {}
        """(task, question) → what each of its answers cost, where the stage searches."""
        self.thinks = False
        """Whether an answer had thoughts."""
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        stops = stop_ids(model, tokenizer)
        self.sampler = TorchSampler(model, stop=stops, pad=pad, dtype=dtype, rows=batch_size)
        self.decoder: Sampler = self.sampler
        """What answers are drawn with: this process, or servers that have its weights."""
        self._ends, self._cut = frozenset(stops), list[bool]()

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The text that the training stages render, for lm-eval; with `prefill` where the assistant is to speak."""
        options: dict[str, Any] = {} if add_generation_prompt else {"continue_final_message": True}
        text = render_text(self.tokenizer, chat_history, tools, generation_prompt=add_generation_prompt, **options)
        return text + (self.prefill or "") if add_generation_prompt else text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids; those of a chat get no special tokens beside the template's own, a control token that a question spells is
        text, and an image is a run of places, as in training.

        Raises:
            ModelError: a text has an image, and the model sees none or would be shown it in part.
        """
        if self.chats and add_special_tokens is None:
            add_special_tokens = False
        if not self.chats and not string.startswith(str(self.tokenizer.bos_token)):
            string = as_text(self.tokenizer, string)
        marked = _MARKED.search(string)
        if marked is None:
            return super().tok_encode(string, add_special_tokens, left_truncate_len, **kwargs)
        ids = super().tok_encode(string[: marked.start()], add_special_tokens, **kwargs)
        ids += encode(self.tokenizer, [string[marked.start() :]])[0]
        return self._shortened(ids, left_truncate_len) if left_truncate_len else ids

    def _shortened(self, ids: list[int], room: int) -> list[int]:
        """The last of a question's ids, as many as there is room for."""
        if any(token >= FIRST_ID for token in ids[:-room]):
            raise ModelError(
                "evaluate",
                f"a question has {len(ids)} tokens with its images, and there is room for {room} before the answer",
                "Leave the task out, lower max_gen_toks in its `sampling`, or take a model with a longer context.",
            )
        return ids[-room:]

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Log-likelihoods in the order of the requests; what they share is computed once."""
        try:
            self.policy()
        except ModelError:
            return super()._loglikelihood_tokens(requests, disable_tqdm=disable_tqdm, override_bs=override_bs)
        room = self.max_length + 1
        rows = [(self._shortened([*context, *choice], room), len(choice)) for _, context, choice in requests]
        longest = max((count for _, count in rows), default=0)
        if longest >= room:
            raise ModelError(
                "evaluate", f"a choice of {longest} tokens, and the model reads at most {self.max_length}."
            )
        cut = sum(len(context) + len(choice) > room for _, context, choice in requests)
        if cut:
            log.warning(
                "%d of %d questions are cut on the left: the model reads %d tokens", cut, len(rows), self.max_length
            )
        from evaluation.likelihoods import groups  # multiple choice alone

        members = groups(rows)
        results = self.ranks.divide(self, likelihoods, [[rows[index] for index in group] for group in members])
        out: list[tuple[float, bool]] = [(0.0, False)] * len(rows)
        for group, values in zip(members, results, strict=True):
            for index, value in zip(group, values, strict=True):
                out[index] = value
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], value)
        return out

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; repeats of a request are drawn independently."""
        self.calls += 1
        if odd := [name for r in requests for name in unknown(normalize_gen_kwargs(r.args[1], self.max_gen_toks))]:
            if any(PLACE in r.args[0] for r in requests):
                raise RecipeError(
                    "evaluate.tasks",
                    f"{requests[0].task_name} has images and sets {odd[0]}, which our sampler does not know",
                    "Leave it out.",
                )
            return self._generate_by_lm_eval(requests, disable_tqdm)
        batches = self._batches(requests)
        drawn = self.ranks.divide(self, answers, batches)
        out: list[str] = [""] * len(requests)
        for batch, (kept, costs) in zip(batches, drawn, strict=True):
            for place, answer in zip(batch.places, kept, strict=True):
                out[place] = self._note(requests[place], answer, batch.until)
            for place, cost in zip(batch.places, costs, strict=bool(costs)):
                self.spent.setdefault((requests[place].task_name, requests[place].doc_id), []).append(cost)
        return out

    def _batches(self, requests: list[Instance]) -> list[Batch]:
        """The requests in batches of equal settings and similar length."""
        eos = self.tok_decode([self.eot_token_id], skip_special_tokens=False)
        by_settings: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            by_settings.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(i)
        batches = []
        for indices in by_settings.values():
            kwargs: dict[str, Any] = dict(normalize_gen_kwargs(requests[indices[0]].args[1], self.max_gen_toks))
            until = handle_stop_sequences(kwargs.get("until"), eos=eos)
            sampling = sampling_of(kwargs)
            room = self.max_length - sampling.max_tokens
            contexts = {i: self.tok_encode(requests[i].args[0], left_truncate_len=room) for i in indices}
            order = sorted(indices, key=lambda i: (len(contexts[i]), contexts[i], i))
            for start in range(0, len(order), self.sampler.rows):
                places = order[start : start + self.sampler.rows]
                self.batches += 1
                of_batch = [contexts[i] for i in places], [requests[i].doc for i in places]
                batches.append(Batch(self.batches, self.calls, places, *of_batch, until, sampling))
        return batches

    def _note(self, request: Instance, answer: Answer, until: list[str]) -> str:
        """An answer as the benchmark reads it; notes its length, and whether it was cut."""
        tokens, asked = answer.tokens.tolist(), (request.task_name, request.doc_id)
        text = completion_text(self.tokenizer, tokens)
        self.drawn.setdefault(asked, []).append(len(tokens))
        ended = answer.stop != Stop.LENGTH or any(end in text for end in until if end)
        self.truncated.setdefault(asked, []).append(not ended)
        self.thinks |= THINK_END in text
        return self.text(tokens, until)

    def _generate_by_lm_eval(self, requests: list[Instance], disable_tqdm: bool) -> list[str]:
        """lm-eval's own answers, for settings that our sampler does not know, of this process alone; notes which of them were cut.

        lm-eval answers in an order of its own, and says it to the hook that caches answers: equal requests may change places.
        """
        hook: Any = self.cache_hook
        answered, self._cut = _Answered(hook), []
        self.cache_hook: Any = answered
        try:
            out = super().generate_until(requests, disable_tqdm=disable_tqdm)
        finally:
            self.cache_hook = hook
        flags: dict[str, list[bool]] = {}
        for key, cut in zip(answered.keys, self._cut, strict=True):
            flags.setdefault(key, []).append(cut)
        for request in requests:
            self.truncated.setdefault((request.task_name, request.doc_id), []).append(flags[repr(request.args)].pop(0))
        return out

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any) -> torch.Tensor:
        """lm-eval's generation of a batch [rows, tokens]; notes for each row whether it ended before the limit."""
        out: torch.Tensor = super()._model_generate(context, max_length, stop, **settings)
        for tokens in out[:, context.shape[1] :].tolist():
            ended = not self._ends.isdisjoint(tokens) or any(end in self.tok_decode(tokens) for end in stop if end)
            self._cut.append(not ended)
        return out

    def draw(self, batch: Batch) -> tuple[list[Completion], list[Cost]]:
        """One answer to each request, in order; and what each cost, where the stage searches."""
        draw = generator(self.sampler.device, self.seed, batch.number)
        return self.decoder.extend(batch.contexts, batch.sampling, draw), []

    def policy(self) -> Policy:
        """The model as the trainer reads it.

        Raises:
            ModelError: a family whose logits the engine does not know, or two models as one.
        """
        return Policy(self.model, Sampling(), dtype=self.sampler.dtype)

    def text(self, tokens: list[int], until: list[str]) -> str:
        """An answer as the benchmark reads it."""
        text = completion_text(self.tokenizer, tokens)
        thinks = THINK_END if THINK_END in text else None
        return str(postprocess_generated_text(text, stop=until, think_end_token=thinks))


def answers(lm: SamplerLM, batches: Sequence[Batch]) -> Iterator[tuple[list[Answer], list[Cost]]]:
    """Of each batch the answers, and what each cost where the stage searches; tells how far this process is with its own."""
    done, total = 0, sum(len(batch.places) for batch in batches)
    for batch in batches:
        completions, costs = lm.draw(batch)
        yield [Answer(array("i", each.tokens), each.stop) for each in completions], costs
        done += len(batch.places)
        if lm.progress:
            lm.progress(done, total)


def likelihoods(
    lm: SamplerLM, parts: Sequence[Sequence[tuple[Sequence[int], int]]]
) -> Iterator[list[tuple[float, bool]]]:
    """Of each group of requests of `log_likelihoods`, their log-likelihoods, and whether each token is the most probable one; tells
    how far this process is with its own."""
    from evaluation.likelihoods import log_likelihoods  # multiple choice alone

    policy, budget = lm.policy(), TOKENS_PER_ROW * lm.sampler.rows
    done, total = 0, sum(map(len, parts))
    with lm.sampler.weights.in_place(0):  # every question is a pass or two, which would round all weights again
        for requests in parts:
            values: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
            for index, log_likelihood, likeliest in log_likelihoods(policy, requests, budget):
                values[index] = (log_likelihood, likeliest)
                done += 1
                if lm.progress:
                    lm.progress(done, total)
            yield values


class _Answered:
    """lm-eval's hook that caches answers, with the requests in the order in which they were answered."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.keys: list[str] = []

    def add_partial(self, kind: str, request: tuple[str, Any], answer: Any) -> None:
        """Note a request, and have its answer cached."""
        self.keys.append(repr(request))
        self.hook.add_partial(kind, request, answer)


def load(
    path: str,
    settings: Model,
    *,
    guidance: tuple[str, float] | None = None,
    kind: type[SamplerLM] = SamplerLM,
    **options: Any,
) -> SamplerLM:
    """A checkpoint folder or hub name, ready to evaluate.

    Args:
        settings: of the recipe's model; `dtype` is what the checkpoint computes in.
        kind: what it becomes.
        guidance: folder or hub name of a base that it is decoded with, and the weight.

    Raises:
        ModelError: a model cannot be loaded, or the base has another tokenizer or chat template.
    """
    from pipelines.engine import models

    tokenizer = models.load_tokenizer(path, settings)
    model: Any = models.load_model(path, settings)
    if guidance is not None:
        model = with_base(model, tokenizer, *guidance, settings, "evaluate.guidance.base")
    model.to(models.device())
    model.eval()
    with torch.no_grad():
        lm = kind(model, tokenizer, dtype=settings.dtype, **options)
    lm.system_prompt = models.system_prompt_of(path)
    return lm
