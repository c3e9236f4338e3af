"""Critiques of answers, written by a language model that sees the prompt and one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pipelines.contract.streams import stream_id
from pipelines.data.records import Message
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion
    from pipelines.contract.sampling import Sampling


def critique_prompt(prompt: list[Message], answer: str, instruction: str) -> list[Message]:
    """The conversation to which a critique is the reply.

    >>> critique_prompt([{"role": "user", "content": "2 + 2?"}], "5", "Is it right?")[1:]
    [{'role': 'assistant', 'content': '5'}, {'role': 'user', 'content': 'Is it right?'}]
    """
    return [*prompt, {"role": "assistant", "content": answer}, {"role": "user", "content": instruction}]


class CritiqueSampler:
    """A causal language model that writes critiques.

    Args:
        model: the causal LM, on its device.
        dtype: of the computation, as in `Policy`.
    """

    def __init__(self, model: Any, tokenizer: Any, *, dtype: str) -> None:
        stop = models.stop_ids(model, tokenizer)
        self.device = next(model.parameters()).device
        self.sampler = TorchSampler(model, stop=stop, pad=tokenizer.pad_token_id, dtype=dtype)

    def write(
        self, prefixes: Sequence[Sequence[int]], count: int, sampling: Sampling, *, seed: int
    ) -> list[list[Completion]]:
        """`count` critiques that continue each prefix.

        The random numbers of a critique depend on the seed, the prefix and its place alone.

        Args:
            prefixes: token ids up to where the critique starts.
        """
        drawn = self.sampler.extend(
            [prefix for prefix in prefixes for _ in range(count)],
            sampling,
            generator(self.device, seed),
            streams=[
                (stream_id("critique", seed, list(prefix), place), 0) for prefix in prefixes for place in range(count)
            ],
        )
        return [drawn[start : start + count] for start in range(0, len(drawn), count)]


def language_model(classifier: Any, head: dict[str, torch.Tensor]) -> Any:
    """A causal LM around the classifier's own decoder.

    Args:
        head: the state of the output embeddings: `weight`, and `bias` where the family has one.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        causal = AutoModelForCausalLM.from_config(classifier.config)
    setattr(causal, causal.base_model_prefix, getattr(classifier, classifier.base_model_prefix))
    weight = head["weight"]
    output = torch.nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in head)
    output.load_state_dict(head)
    causal.set_output_embeddings(output)
    return causal.eval().requires_grad_(False)
