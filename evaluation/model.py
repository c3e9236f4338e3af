"""A checkpoint as an lm-eval model: generation through the training sampler, log-likelihoods through the trainer's passes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

from evaluation.generation import sampling_of, unknown
from evaluation.likelihoods import log_likelihoods
from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.contract.rollout import Completion
from pipelines.contract.sampling import Sampling
from pipelines.data.chat import THINK_END, completion_text, render_text
from pipelines.data.control import BREAK, as_text, encode
from pipelines.data.records import Stop
from pipelines.engine.distribution import generator
from pipelines.engine.guided import with_base
from pipelines.engine.models import stop_ids
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

log = logging.getLogger("whetstone.evaluation")

TOKENS_PER_ROW = 32
"""Tokens of a pass over given texts, per row that is decoded side by side."""


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
        progress: called with (done, total) answers.
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
        self.seed, self.progress, self.calls = seed, progress, 0
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
        self.spent: dict[tuple[str | None, int | None], list[tuple[int, int]]] = {}
        """(task, question) → tokens drawn for each of its answers, and tokens read to score them, where the stage searches."""
        self.thinks = False
        """Whether an answer had thoughts."""
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        stops = stop_ids(model, tokenizer)
        self.sampler = TorchSampler(model, stop=stops, pad=pad, dtype=dtype, rows=batch_size)
        self._ends, self._cut = frozenset(stops), list[bool]()

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that the training stages render, for lm-eval; with `prefill` where the assistant is to speak."""
        options: dict[str, Any] = {} if add_generation_prompt else {"continue_final_message": True}
        text = render_text(self.tokenizer, chat_history, generation_prompt=add_generation_prompt, **options)
        return text + (self.prefill or "") if add_generation_prompt else text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids; those of a chat get no special tokens beside the template's own, and a control token that a question spells is
        text, as in training."""
        if self.chats and add_special_tokens is None:
            add_special_tokens = False
        if not self.chats and not string.startswith(str(self.tokenizer.bos_token)):
            string = as_text(self.tokenizer, string)
        if BREAK not in string:
            return super().tok_encode(string, add_special_tokens, left_truncate_len, **kwargs)
        first, _, rest = string.partition(BREAK)
        ids = super().tok_encode(first, add_special_tokens, **kwargs) + encode(self.tokenizer, [BREAK + rest])[0]
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Log-likelihoods in the order of the requests; what they share is computed once."""
        try:
            policy = Policy(self.model, Sampling(), dtype=self.sampler.dtype)
        except ModelError:  # a family whose logits the engine does not know, or two models as one
            return super()._loglikelihood_tokens(requests, disable_tqdm=disable_tqdm, override_bs=override_bs)
        room = self.max_length + 1
        rows = [([*context, *choice][-room:], len(choice)) for _, context, choice in requests]
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
        out: list[tuple[float, bool]] = [(0.0, False)] * len(rows)
        budget = TOKENS_PER_ROW * self.sampler.rows
        with self.sampler.weights.in_place(0):  # every question is a pass or two, which would round all weights again
            for done, (index, log_likelihood, likeliest) in enumerate(log_likelihoods(policy, rows, budget), start=1):
                out[index] = (log_likelihood, likeliest)
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], out[index])
                if self.progress:
                    self.progress(done, len(rows))
        return out

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; repeats of a request are drawn independently."""
        if any(unknown(normalize_gen_kwargs(r.args[1], self.max_gen_toks)) for r in requests):
            return self._generate_by_lm_eval(requests, disable_tqdm)
        eos = self.tok_decode([self.eot_token_id], skip_special_tokens=False)
        out: list[str] = [""] * len(requests)
        by_settings: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            by_settings.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(i)
        done = 0
        for indices in by_settings.values():
            kwargs: dict[str, Any] = dict(normalize_gen_kwargs(requests[indices[0]].args[1], self.max_gen_toks))
            until = handle_stop_sequences(kwargs.get("until"), eos=eos)
            sampling = sampling_of(kwargs)
            room = self.max_length - sampling.max_tokens
            contexts = {i: self.tok_encode(requests[i].args[0], left_truncate_len=room) for i in indices}
            order = sorted(indices, key=lambda i: (len(contexts[i]), contexts[i], i))
            for start in range(0, len(order), self.sampler.rows):
                part = {i: requests[i] for i in order[start : start + self.sampler.rows]}
                drawn = self.draw(part, [contexts[i] for i in part], until, sampling)
                for (i, request), completion in zip(part.items(), drawn, strict=True):
                    tokens, asked = completion.tokens, (request.task_name, request.doc_id)
                    text = completion_text(self.tokenizer, tokens)
                    self.drawn.setdefault(asked, []).append(len(tokens))
                    ended = completion.stop != Stop.LENGTH or any(end in text for end in until if end)
                    self.truncated.setdefault(asked, []).append(not ended)
                    self.thinks |= THINK_END in text
                    out[i] = self.text(tokens, until)
                done += len(part)
                if self.progress:
                    self.progress(done, len(requests))
        return out

    def _generate_by_lm_eval(self, requests: list[Instance], disable_tqdm: bool) -> list[str]:
        """lm-eval's own answers, for settings that our sampler does not know; notes which of them were cut.

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

    def draw(
        self, requests: dict[int, Instance], contexts: list[list[int]], until: list[str], sampling: Sampling
    ) -> list[Completion]:
        """One answer to each request, in order.

        Args:
            requests: by their places among all that were asked together.
            contexts: their token ids.
            until: texts that end an answer.
        """
        self.calls += 1
        draw = generator(self.sampler.device, self.seed, self.calls)
        return self.sampler.extend(contexts, sampling, draw)

    def text(self, tokens: list[int], until: list[str]) -> str:
        """An answer as the benchmark reads it."""
        text = completion_text(self.tokenizer, tokens)
        thinks = THINK_END if THINK_END in text else None
        return str(postprocess_generated_text(text, stop=until, think_end_token=thinks))


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
