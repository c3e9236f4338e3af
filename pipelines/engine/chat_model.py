"""A frozen language model that answers conversations, as a judge does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import chat
from pipelines.data.records import Message, Stop
from pipelines.engine import models
from pipelines.engine.sampler import TorchSampler

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no letter."""
ROWS = 64
"""Conversations that are answered side by side."""


class ChatModel:
    """Implements `LanguageModel` (pipelines/contract/lent_models.py).

    Args:
        path: a folder or hub name.
        settings: the recipe's model section for this path.

    Raises:
        ModelError: it cannot be loaded.
    """

    def __init__(self, path: str, settings: Model) -> None:
        model = models.load_model(path, settings)
        model.requires_grad_(False).to(models.device())  # type: ignore[arg-type]
        self.tokenizer = models.load_tokenizer(path, settings)
        self.system_prompt = models.system_prompt_of(path)
        stop = models.stop_ids(model, self.tokenizer)
        self.sampler = TorchSampler(
            model.eval(), stop=stop, pad=self.tokenizer.pad_token_id or 0, dtype=settings.dtype, rows=ROWS
        )

    @classmethod
    def around(cls, sampler: Any, tokenizer: Any) -> ChatModel:
        """A model that is loaded already, by what samples from it."""
        model = cls.__new__(cls)
        model.sampler, model.tokenizer, model.system_prompt = sampler, tokenizer, None
        return model

    def reply(
        self, conversations: Sequence[list[Message]], *, temperature: float, max_tokens: int, sample: int = 0
    ) -> list[tuple[str | None, int]]:
        """(text, tokens) of each; see `LanguageModel`."""
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        drawn = self.draw(conversations, sampling, [sample] * len(conversations))
        return [(text, prompt + completion) for text, prompt, completion in drawn]

    def draw(
        self, conversations: Sequence[list[Message]], sampling: Sampling, samples: Sequence[Any]
    ) -> list[tuple[str | None, int, int]]:
        """(text, tokens of the prompt, tokens of the completion) of each; no text where it could not be sampled.

        Args:
            samples: for each conversation, plain values that its draws follow, beside what it says; 0 adds nothing.
        """
        prompts = chat.render_prompts(self.tokenizer, [list(c) for c in conversations]) if conversations else []
        pairs = zip(conversations, samples, strict=True)
        streams = [(_stream([conversation, sample] if sample else conversation), 0) for conversation, sample in pairs]
        unused = torch.Generator(device=self.sampler.device)
        completions = self.sampler.extend(prompts, sampling, unused, streams=streams) if prompts else []
        drawn: list[tuple[str | None, int, int]] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            text = None if completion.stop == Stop.ERROR else chat.completion_text(self.tokenizer, completion.tokens)
            drawn.append((text, len(prompt), len(completion.tokens)))
        return drawn

    def stream(self, conversation: list[Message], sampling: Sampling, seed: int) -> Iterator[str]:
        """The reply in pieces, as it is drawn; nothing where the conversation fills the model's context.

        Args:
            seed: of the draws.
        """
        generator = torch.Generator(device=self.sampler.device).manual_seed(seed)
        prompt = chat.render_prompt(self.tokenizer, list(conversation))
        tokens: list[int] = []
        shown = ""
        for token in self.sampler.stream(prompt, sampling, generator):
            tokens.append(token)
            text = chat.completion_text(self.tokenizer, tokens)
            letters_complete = not text.endswith(REPLACEMENT)  # one may be made of several tokens
            if letters_complete and len(text) > len(shown) and text.startswith(shown):
                yield text[len(shown) :]
                shown = text
        text = chat.completion_text(self.tokenizer, tokens)
        if len(text) > len(shown):
            yield text[len(shown) :]


def _stream(conversation: Any) -> int:
    """The RNG stream of a conversation, from its content."""
    return int.from_bytes(hashlib.sha256(json.dumps(conversation).encode()).digest()[:7], "big")
