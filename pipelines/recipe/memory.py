"""What a training stage holds in memory at its fullest, from the sizes of the model and the recipe; nothing is loaded.

Let P be the parameters, T those that are trained (P, or the adapters), N the tokens of a pass, M those of them that are
scored, R the rows decoded side by side, C their positions, L layers, h hidden, i intermediate, a query heads, k key heads, d the
size of a head, V the vocabulary, W the width of a packed row, b bytes of a compute value (4, in bfloat16 2). In bytes:

    process       PROCESS: Python, torch, transformers and their libraries, on the host
    weights       4 P (+ 2 P in bfloat16: rounded copies; + 4 P for a full reference policy; + 4 P a step of `staleness`)
    gradients     4 T
    optimizer     8 T
    commit        12 T while the copy of a commit is written, on the host
    activations   N L b (8 h + 4 a d + 2 a d + 4 i + W): norms, projections, attention, MLP, the mask of packed rows;
                  with gradient checkpointing N b (L h + those of one layer)
                  adapters add N L b (2 a d + 2 k d + 2 h + 2 i): what each of them puts out
    logits        min(M V, CHUNK) 4 (x TRUNCATED where top-k, top-p or min-p cut the distribution), and the head's gradient, 4 V h
    cache         R C L 2 k d b, and DRAWN R V 4 for the logits that tokens are drawn from

Training holds weights, optimizer, and the larger of gradients on one side, activations and logits on the other: gradients come
while activations go. A commit holds weights, optimizer, its copy and the gradients of the step that goes on meanwhile; decoding
weights, optimizer and cache. The peak is the process and the largest of the three; where the disk is so slow that a whole step
passes while a commit is written, up to the copy's size comes on top. With `processes: n` what is trained is divided by n and
each process keeps a full copy of the weights for decoding.

Left out: critics and teachers, experts that are computed for few tokens (all are counted as one MLP of `intermediate`), what
the allocator keeps. It is an upper bound on what the recipe leaves open: every completion has `max_tokens`, every row of SFT is scored
in all of its tokens, no row is skipped. A prompt's length is not in the recipe: `prompt_tokens` is what is assumed of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.recipe.graph import Node
from pipelines.recipe.settings import Rlvr, Sft

PROCESS = 620_000_000
"""Bytes of a stage's process before it has a model; measured on Linux with torch's CPU build."""
CHUNK = 1 << 27
"""Most logits in memory at a time (`CHUNK_FLOATS` in pipelines/engine/policy.py)."""
TREE_WIDTH = 512
"""Rows that share prefixes are laid out in trees up to this width (pipelines/engine/layout.py)."""
TRUNCATED = 6
DRAWN = 4
PROMPT_TOKENS = 256
"""Assumed where `curate.max_prompt_tokens` says nothing."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a causal LM."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any, parameters: int) -> Shape:
        """From a transformers text configuration; families without a field have its usual value."""
        hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
        return cls(
            parameters=parameters,
            layers=int(config.num_hidden_layers),
            hidden=hidden,
            intermediate=int(getattr(config, "intermediate_size", None) or 4 * hidden),
            heads=heads,
            key_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_size=int(getattr(config, "head_dim", None) or hidden // heads),
            vocabulary=int(config.vocab_size),
        )

    def adapters(self, rank: int) -> int:
        """Parameters of adapters on the attention's and the MLP's matrices."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        return rank * self.layers * (attention + 3 * (self.hidden + self.intermediate))


@dataclass(frozen=True)
class Needs:
    """Bytes of one stage, per process."""

    stage: str
    process: int
    weights: int
    gradients: int
    optimizer: int
    commit: int
    activations: int
    logits: int
    cache: int

    @property
    def phases(self) -> dict[str, int]:
        """What is held at once, beside the process."""
        state = self.weights + self.optimizer
        return {
            "training": state + max(self.gradients, self.activations + self.logits),
            "commit": state + self.gradients + self.commit,
            "decoding": state + self.cache,
        }

    @property
    def peak(self) -> int:
        """The process and its fullest phase."""
        return self.process + max(self.phases.values())

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "phases": self.phases, "peak": self.peak}


def known(node: Node) -> bool:
    """Whether it can be said what a stage needs: those of SFT and RLVR."""
    return isinstance(node.settings, Sft | Rlvr)


def of_stage(node: Node, shape: Shape, *, prompt_tokens: int | None = None) -> Needs:
    """What a stage of the recipe needs.

    Args:
        node: a stage that is `known`.
        prompt_tokens: length of a prompt; default: the recipe's bound, else `PROMPT_TOKENS`.
    """
    section: Sft | Rlvr = node.settings
    bounds = [getattr(data.settings, "max_prompt_tokens", None) for data in node.ancestors()]
    prompt = prompt_tokens or next((bound for bound in bounds if bound), PROMPT_TOKENS)
    value = 2 if node.recipe.model.dtype == "bfloat16" else 4
    trained = shape.parameters if section.lora is None else shape.adapters(section.lora.rank)
    shards = section.processes if isinstance(section, Rlvr) else 1
    if isinstance(section, Sft):
        tokens = min(section.micro_batch_tokens, max(section.tokens_per_step, section.max_length))
        scored, width, cache, truncated, reference = tokens, section.max_length, 0, False, 0
    else:
        length = prompt + section.sampling.max_tokens
        rows = min(section.decode_rows, section.prompts * section.group_size)
        completions = section.prompts * section.group_size * section.sampling.max_tokens
        prompts = section.prompts * prompt * (1 if section.share_prefixes else section.group_size)
        tokens = max(length, min(section.micro_batch_tokens, prompts + completions))
        scored = min(tokens, completions)
        width = max(length, min(TREE_WIDTH, prompt + section.group_size * section.sampling.max_tokens))
        cache = rows * length * shape.layers * 2 * shape.key_heads * shape.head_size * value
        cache += DRAWN * rows * shape.vocabulary * 4
        sampling = section.sampling
        truncated = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
        reference = 4 * shape.parameters if section.divergence is not None and section.lora is None else 0
    copies = section.staleness if isinstance(section, Rlvr) else 0
    weights = (4 if value == 4 else 6) * shape.parameters + reference + 4 * shape.parameters * copies
    return Needs(
        stage=node.name,
        process=PROCESS,
        weights=weights if shards == 1 else weights + 4 * trained // shards,
        gradients=4 * trained // shards,
        optimizer=8 * trained // shards,
        commit=12 * trained // shards,
        activations=_activations(shape, tokens, width, value, section),
        logits=min(scored * shape.vocabulary, CHUNK) * 4 * (TRUNCATED if truncated else 1)
        + (4 * shape.vocabulary * shape.hidden if section.lora is None else 0),
        cache=cache,
    )


def _activations(shape: Shape, tokens: int, width: int, value: int, section: Sft | Rlvr) -> int:
    """Bytes that the backward pass reads again."""
    queries = shape.heads * shape.head_size
    layer = 8 * shape.hidden + 6 * queries + 4 * shape.intermediate + width
    if section.lora is not None:
        layer += 2 * queries + 2 * shape.key_heads * shape.head_size + 2 * shape.hidden + 2 * shape.intermediate
    if section.gradient_checkpointing:
        return tokens * value * (shape.layers * shape.hidden + layer)
    return tokens * value * shape.layers * layer


def least(needs: Needs, shape: Shape) -> int:
    """Bytes that no setting of the stage but its adapters gets below: state, and the logits of 64 tokens (one chunk at least)."""
    return needs.weights + needs.gradients + needs.optimizer + min(needs.logits, 64 * shape.vocabulary * 4)


def levers(node: Node, shape: Shape, prompt_tokens: int | None = None) -> list[tuple[str, int]]:
    """Settings that lower the stage's peak, with the peak that each leaves, the largest lever first."""
    section, stage = node.settings, node.name
    changes: dict[str, Any] = {}
    if section.lora is None:
        changes[f"{stage}.lora={{rank: 16}}"] = {"lora": {"rank": 16}}
    if not section.gradient_checkpointing:
        changes[f"{stage}.gradient_checkpointing=true"] = {"gradient_checkpointing": True}
    lowest = section.max_length if isinstance(section, Sft) else 1
    half = max(lowest, section.micro_batch_tokens // 2)
    if half < section.micro_batch_tokens:
        changes[f"{stage}.micro_batch_tokens={half}"] = {"micro_batch_tokens": half}
    if isinstance(section, Rlvr):
        rows = min(section.decode_rows, section.prompts * section.group_size) // 2
        if rows >= 1:
            changes[f"{stage}.decode_rows={rows}"] = {"decode_rows": rows}
    before = of_stage(node, shape, prompt_tokens=prompt_tokens).peak
    useful = []
    for name, change in changes.items():
        changed = type(section).model_validate(section.model_dump() | change)
        other = replace(node, stage=replace(node.stage, settings=changed))
        after = of_stage(other, shape, prompt_tokens=prompt_tokens).peak
        if after < before:
            useful.append((name, after))
    return sorted(useful, key=lambda lever: lever[1])
