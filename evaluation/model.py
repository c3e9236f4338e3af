"""A checkpoint as an lm-eval model: log-likelihoods as in HFLM, generation through the training sampler."""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

from pipelines.data.chat import THINK_END, completion_text, render_text
from pipelines.engine.distribution import generator
from pipelines.engine.models import stop_ids
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.settings import Sampling

KNOWN = {"do_sample", "temperature", "top_p", "top_k", "min_p", "max_gen_toks", "until"}
"""Generation settings the sampler understands; a task that asks for others is run by HFLM itself."""


class SamplerLM(HFLM):
    """HFLM whose `generate_until` decodes all requests side by side over a shared-prefix cache.

    Greedy answers are those of HFLM, token for token (tested); sampled ones come from a generator that
    depends on the seed only.

    Args:
        model: a causal LM on its device.
        tokenizer: with the chat template used in training.
        batch_size: rows decoded side by side.
        seed: of the sampled answers.
        progress: called with (done, total) answers.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int, seed: int = 0, progress: Any = None) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, backend="causal")
        self.seed, self.progress, self.calls = seed, progress, 0
        self.system_prompt: str | None = None
        """The system prompt that the model was trained with."""
        self.chats = False
        """Whether requests come from the chat template, which writes the special tokens itself."""
        self.prefill: str | None = None
        """What every answer begins with, behind the generation prompt."""
        self.drawn: dict[tuple[str | None, int | None], list[int]] = {}
        """(task, question) → tokens of each of its answers, their thoughts included, which lm-eval's texts lack."""
        self.thinks = False
        """Whether an answer had thoughts."""
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.sampler = TorchSampler(model, stop=stop_ids(model, tokenizer), pad=pad, rows=batch_size)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that the training stages render, for lm-eval; with `prefill` where the assistant is to speak."""
        options = {} if add_generation_prompt else {"continue_final_message": True}
        text = render_text(self.tokenizer, chat_history, generation_prompt=add_generation_prompt, **options)
        return text + (self.prefill or "") if add_generation_prompt else text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids; those of a chat get no special tokens beside the template's own, as in training."""
        if self.chats and add_special_tokens is None:
            add_special_tokens = False
        return super().tok_encode(string, add_special_tokens, left_truncate_len, **kwargs)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; repeats of a request are drawn independently."""
        if any(set(normalize_gen_kwargs(r.args[1], self.max_gen_toks)) - KNOWN for r in requests):
            return super().generate_until(requests, disable_tqdm=disable_tqdm)
        eos = self.tok_decode([self.eot_token_id], skip_special_tokens=False)
        out: list[str] = [""] * len(requests)
        by_settings: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            by_settings.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(i)
        done = 0
        for indices in by_settings.values():
            kwargs: dict[str, Any] = dict(normalize_gen_kwargs(requests[indices[0]].args[1], self.max_gen_toks))
            until = handle_stop_sequences(kwargs.get("until"), eos=eos)
            sampling = _sampling(kwargs)
            room = self.max_length - sampling.max_tokens
            contexts = {i: self.tok_encode(requests[i].args[0], left_truncate_len=room) for i in indices}
            order = sorted(indices, key=lambda i: (len(contexts[i]), contexts[i], i))
            for start in range(0, len(order), self.sampler.rows):
                part = order[start : start + self.sampler.rows]
                self.calls += 1
                draw = generator(self.sampler.device, self.seed, self.calls)
                for i, completion in zip(
                    part, self.sampler.extend([contexts[i] for i in part], sampling, draw), strict=True
                ):
                    text = completion_text(self.tokenizer, completion.tokens)
                    request = requests[i]
                    self.drawn.setdefault((request.task_name, request.doc_id), []).append(len(completion.tokens))
                    thinks = THINK_END if THINK_END in text else None
                    self.thinks |= thinks is not None
                    out[i] = postprocess_generated_text(text, stop=until, think_end_token=thinks)
                done += len(part)
                if self.progress:
                    self.progress(done, len(requests))
        return out


def _sampling(kwargs: dict[str, Any]) -> Sampling:
    greedy = not kwargs.get("do_sample") or not kwargs.get("temperature", 1.0)
    return Sampling(
        temperature=0.0 if greedy else float(kwargs.get("temperature") or 1.0),
        top_p=float(kwargs.get("top_p") or 1.0),
        top_k=int(kwargs.get("top_k") or 0),
        min_p=float(kwargs.get("min_p") or 0.0),
        max_tokens=int(kwargs["max_gen_toks"]),
    )


def load(path: str, settings: Any, **options: Any) -> SamplerLM:
    """A checkpoint folder or hub name, ready to evaluate."""
    from pipelines.engine import models

    tokenizer = models.load_tokenizer(path, settings)
    model = models.load_model(path, settings)
    model.to(models.device())  # type: ignore[arg-type]
    model.eval()
    with torch.no_grad():
        lm = SamplerLM(model, tokenizer, **options)
    lm.system_prompt = models.system_prompt_of(path)
    return lm
