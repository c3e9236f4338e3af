"""A rough time of a stage's step on named GPUs, from the operations and the bytes that it takes; nothing is loaded.

Let P be the parameters and N the tokens of a step. A training pass takes 6 P N operations (with adapters 4 P N, with gradient checkpointing
2 P N more), a scoring pass 2 P N, attention 2 L a d operations a token and position in a pass forward and twice that backward. A decoding
step reads the weights and the keys and values of its rows once. GPUs are assumed to keep up the shares of their makers' figures that one
H200 kept up in RLVR steps (docs/results.md, "On one H200"); an H100 did 35 and 24 %. Rewards, pushes of weights, commits and what ranks
exchange are not counted, and every completion is taken to be `max_tokens` long; where sources differ, every group is taken to be as
large and as long as the largest may be.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.preference.settings import Preference
from pipelines.recipe.settings import Rlvr, Sft
from pipelines.recipe.stage_kind import Node
from tasks.preflight import memory
from tasks.preflight.memory import Shape

TRAINING_SHARE = 0.32
"""Of the stated operations, in training passes."""
DECODING_SHARE = 0.17
"""Of the stated bandwidth, in rollouts."""


@dataclass(frozen=True)
class Card:
    """A GPU, by its maker's sheet."""

    memory: float
    """Bytes."""
    flops: float
    """Dense bfloat16 operations per second."""
    bandwidth: float
    """Bytes of memory per second."""


CARDS = {
    "H200": Card(141e9, 989e12, 4.8e12),
    "H100": Card(80e9, 989e12, 3.35e12),
    "A100": Card(80e9, 312e12, 2.0e12),
    "L40S": Card(48e9, 362e12, 0.864e12),
    "A10": Card(24e9, 125e12, 0.6e12),
    "L4": Card(24e9, 121e12, 0.3e12),
}


def named(name: str) -> tuple[str, Card] | None:
    """The card that a driver's or a person's name of a GPU means.

    >>> named("NVIDIA A100-SXM4-80GB")[0]
    'A100'
    """
    longest = max((card for card in CARDS if card.lower() in name.lower()), key=len, default=None)
    return (longest, CARDS[longest]) if longest else None


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    training: float
    decoding: float = 0.0


def of_stage(node: Node, shape: Shape, card: Card, *, prompt_tokens: int | None = None) -> StepTime | None:
    """What a step of a stage takes; None for stages without steps of a known size.

    Args:
        card: each of the stage's GPUs.
        prompt_tokens: length of a prompt; default: the recipe's bound, else `memory.PROMPT_TOKENS`.
    """
    section, prompt = node.settings, memory.prompt_length(node, prompt_tokens)
    if isinstance(section, Sft):
        return StepTime(_training(section, shape, card, section.tokens_per_step, section.max_length))
    if isinstance(section, Preference):
        tokens = 2 * section.pairs_per_step * section.max_length
        return StepTime(_training(section, shape, card, tokens, section.max_length))
    if not isinstance(section, Rlvr):
        return None
    group, answer = memory.largest(section)
    rows = section.prompts * group
    tokens = rows * (prompt + answer)
    scored = int(section.old_logp == "trainer") + int(section.divergence is not None)
    training = section.epochs * _training(section, shape, card, tokens, prompt + answer)
    training += scored * _seconds(2, 1, section, shape, card, tokens, prompt + answer)
    return StepTime(training, _decoding(section, shape, card, rows, prompt, answer, node.recipe.model.dtype))


def _training(section: Sft | Preference | Rlvr, shape: Shape, card: Card, tokens: int, length: int) -> float:
    """Seconds of passes forward and backward over so many tokens, in rows of `length`."""
    again = 1 if section.gradient_checkpointing else 0
    return _seconds((6 if section.lora is None else 4) + 2 * again, 3 + again, section, shape, card, tokens, length)


def _seconds(
    per_weight: int, passes: int, section: Sft | Preference | Rlvr, shape: Shape, card: Card, tokens: int, length: int
) -> float:
    """Seconds of so many operations per weight and token; attention counts a pass forward once, backward twice."""
    attention = 2 * shape.layers * shape.heads * shape.head_size * length  # causal: half of a row's positions
    operations = tokens * (per_weight * shape.parameters + passes * attention)
    return operations / section.processes / (TRAINING_SHARE * card.flops)


def _decoding(section: Rlvr, shape: Shape, card: Card, rows: int, prompt: int, answer: int, dtype: str) -> float:
    """Seconds of rollouts in the stage's processes, or on the servers that it starts; 0 for servers of somebody else."""
    value = 2 if dtype == "bfloat16" else 4
    if section.sampler is None:
        workers, each, most = section.processes, 1, section.decode_rows
    elif section.sampler.serve is not None:
        workers, each, most = section.sampler.serve.count, section.sampler.serve.cards_each, rows
    else:
        return 0.0
    at_once = min(most, -(-rows // workers))
    waves = -(-rows // (at_once * workers))
    keys = at_once * (prompt + answer // 2) * shape.keys * value
    return waves * answer * (value * shape.parameters + keys) / (each * DECODING_SHARE * card.bandwidth)
