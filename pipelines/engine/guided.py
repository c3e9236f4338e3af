"""Two models decoded as one: reinforcement learning guidance (RLG, arXiv 2508.21016), carried over from diffusion to tokens.

At the sampled text's every token,

    log p(token) = (1 - w) log p_base(token) + w log p_tuned(token) - log Z

so that w = 0 is the base, w = 1 the model that was made from it by RL, and w > 1 goes on beyond it. RL with a KL coefficient b has
its optimum at p_tuned = p_base exp(reward / b) / Z; there the mixture is the optimum for the coefficient b / w. For answers of one token
that is exact. Over sequences it is an approximation, because Z is taken at each token, and not once over whole answers.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import models

if TYPE_CHECKING:  # the catalogue imports this module, and transformers takes seconds
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.modeling_outputs import CausalLMOutput


class Guided(torch.nn.Module):
    """What the sampler needs of a model, computed by two: logits (1 - weight) base + weight tuned, one cache for the layers of both.

    Adding a constant to a row of logits changes no probability, so logits are mixed and no softmax is taken. At the weights 0 and 1
    the result has the bits of one model's logits.

    Args:
        tuned: the model that is guided; its configuration and end tokens are the mixture's.
        base: what it was made from, with the same vocabulary.
        weight: w above.

    Raises:
        ModelError: their vocabularies differ in size.
    """

    def __init__(self, tuned: PreTrainedModel, base: PreTrainedModel, weight: float) -> None:
        super().__init__()
        sizes = [model.config.get_text_config().vocab_size for model in (tuned, base)]
        if sizes[0] != sizes[1]:
            raise ModelError(
                "guidance.base",
                f"its vocabulary has {sizes[1]} tokens, the guided model's {sizes[0]}",
                "Name a model with equally many.",
            )
        self.tuned, self.base, self.weight = tuned, base, weight
        self.config, self.generation_config = tuned.config, tuned.generation_config

    @property
    def device(self) -> torch.device:
        """Of the guided model, and the base's too."""
        return self.tuned.device

    def tie_weights(self) -> None:
        """Nothing: both models were loaded with theirs tied."""

    def forward(self, input_ids: Tensor, past_key_values: Cache | None = None, **inputs: Any) -> CausalLMOutput:
        """Logits float32 [rows, positions, V] of the mixture.

        Args:
            past_key_values: layers of both models, those of the guided one first.
        """
        from transformers.modeling_outputs import CausalLMOutput

        logits, first = [], 0
        for model in parts(self):
            own = None
            if past_key_values is not None:
                own = copy.copy(past_key_values)
                own.layers = past_key_values.layers[first : first + layer_count(model)]
                first += layer_count(model)
            cached: dict[str, Any] = {cache_argument(model): own}
            logits.append(model(input_ids=input_ids, **cached, **inputs).logits.float())
        tuned, base = logits
        return CausalLMOutput(logits=torch.lerp(base, tuned, self.weight))  # type: ignore[arg-type]

    def generate(self, *args: Any, **kwargs: Any) -> Tensor:
        """Refused: transformers' own loop knows no mixture.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            "guidance",
            "a task asks for generation settings that only transformers' own loop knows, and it decodes one model",
            "Override them in the task's `sampling`, or leave the task out.",
        )


def with_base(
    tuned: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, base: str, weight: float, settings: Model, field: str
) -> Guided:
    """A loaded model and a base, as one.

    Args:
        tokenizer: of the loaded model.
        base: folder or hub name.
        settings: the recipe's model section.
        field: of the recipe, that errors name.

    Raises:
        ModelError: the base cannot be loaded, or its tokens or chat template are others.
    """
    its_own = models.load_tokenizer(base, settings)
    same_template = models.template_identity(its_own) == models.template_identity(tokenizer)
    if not same_template or its_own.get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            field,
            "its tokenizer or chat template is another than the guided model's, so the two cannot decode the same tokens",
            "Name a model that shares them.",
        )
    return Guided(tuned, models.load_model(base, settings), weight)


def parts(model: torch.nn.Module) -> tuple[PreTrainedModel, ...]:
    """The transformers models that sampling runs: itself, or the guided one and its base."""
    return (model.tuned, model.base) if isinstance(model, Guided) else (model,)  # type: ignore[return-value]


def layer_count(model: torch.nn.Module) -> int:
    """Layers that keep keys and values, of all parts."""
    return sum(part.config.get_text_config().num_hidden_layers for part in parts(model))


def cache_argument(model: torch.nn.Module) -> str:
    """What a model's `forward` calls its cache."""
    causal: Any = model
    if hasattr(causal, "get_base_model"):  # of peft
        causal = causal.get_base_model()
    return "cache_params" if "cache_params" in inspect.signature(causal.forward).parameters else "past_key_values"
