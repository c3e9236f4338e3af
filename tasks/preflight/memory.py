"""What a stage that computes a model holds in memory at its fullest, from the sizes of the model and the recipe; nothing is loaded.

Let P be the parameters, T those that are trained (P, or the adapters), N the tokens of a pass, M those of them that are
scored, R the rows decoded side by side, C their positions, L layers, h hidden, i intermediate, a query heads, k key heads, d the
size of a head, V the vocabulary, W the width of a packed row, b bytes of a compute value (4, in bfloat16 2), w of a stored weight (4,
with `weights_dtype: bfloat16` 2; of an adapter's 4). In bytes:

    process       PROCESS: Python, torch, transformers and their libraries, on the host
    weights       w P (+ 2 P where float32 is computed in bfloat16: rounded copies; + w P for a full reference policy, or a reward
                  model that scores samples; + w P a step of `staleness`; as much again for the base of guidance)
    gradients     w T
    optimizer     8 T, of Muon 4 T and 4 more for the embedding and the head
    commit        (w + 8) T while the copy of a commit is written, on the host
    activations   N L b (8 h + 4 a d + 2 a d + 4 i + W): norms, projections, attention, MLP, the mask of packed rows;
                  with gradient checkpointing N b (L h + those of one layer)
                  compiled on a GPU N L (b (2 h + 2 a d + 2 k d + 3 i + W) + 8 h): inputs of matrix products, and residuals
                  adapters add N L b (2 a d + 2 k d + 2 h + 2 i): what each of them puts out
                  with `activation_offload` those of one layer
    offloaded     with `activation_offload`, on the host: N b (L times those of a layer, + 3 L h: what several matrices read is copied
                  for each, + 4 h); with gradient checkpointing N b (L + 4) h
    logits        min(M V, CHUNK) 4 (x TRUNCATED where top-k, top-p or min-p cut the distribution), and the head's gradient, w V h
    packed        on a CPU with AVX-512: 4 P in float32 while answers of PACKED_STEPS tokens or more are decoded, 2 P with weights
                  stored in bfloat16
    cache         R C L 2 k d 4 (on a GPU b), without layers that keep no keys; R times 4 bytes a number of a row's recurrent states,
                  however long it is; DRAWN R V 4 for the logits that tokens are drawn from; for samples also LISTED a token of
                  two shards: one is decoded while the one before is written. With guidance R counts twice
    kept          on a GPU the cache of RLVR with `cuda_graphs`, and what is packed in bfloat16: both stay between steps

Training holds weights, optimizer, what is kept, and the larger of gradients on one side, activations and logits on the other: gradients
come while activations go. A commit holds weights, optimizer, its copy and the gradients of the step that goes on meanwhile; decoding
weights, optimizer, packed weights and cache. The peak is the process and the largest of the three; where the disk is so
slow that a whole step passes while a commit is written, up to the copy's size comes on top.
With `processes: n` each process has an n-th of weights, gradients, optimizer and commit, and during a pass the embedding, the head
and two blocks in full. RLVR keeps a full copy beside them (`full_copy`), which decoding reads.
With `gradient_sync: update` gradients are not divided.
A phase of its own, "gathered", has all weights once where no copy is kept: adapters are loaded whole, and they and reward models saved
whole.
On a GPU the copy of a commit is on the host, beside the process; the driver's own memory on the GPU is counted as PROCESS too. Where a
server decodes, a stage has no cache.

A stage on pairs shares a pair's prompt between its answers in a pass. `preference` scores the answers by its reference before the
first step and keeps the scores, not the model. A reward model has no logits unless its loss reads the text. Sampling has no
gradients: of a pass it holds one layer, N b (4 h + 4 i).

Left out: evaluation (what a pass of lm-eval holds depends on the length of its questions), servers that decode, critics and
teachers, what the scan of a recurrent layer keeps for its backward pass, experts that are computed for few tokens (all are
counted as one MLP of `intermediate`), what the allocator keeps (pinned host memory comes in
powers of two). It is an upper bound on what the recipe leaves open: every
completion has `max_tokens` and every group `group_size` (of sources that differ, the most of any), every row of SFT is scored in all of
its tokens, every pair is as long as `max_length` lets it be,
no row is skipped. A prompt's length is not in the recipe: `prompt_tokens` is what is assumed of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipelines.contract.model_settings import STATES
from pipelines.contract.sampling import Sampling
from pipelines.preference.settings import Preference
from pipelines.recipe.settings import Rlvr, Sft
from pipelines.recipe.stage_checks import is_quantized
from pipelines.recipe.stage_kind import Node
from pipelines.reward_model.kind import ANSWER_TEXT, CRITIQUE_TEXT, bound_loss
from pipelines.reward_model.settings import RewardModel
from pipelines.sample.settings import Sample

PROCESS = 620_000_000
"""Bytes of a stage's process before it has a model; measured on Linux with torch's CPU build."""
CHUNK = 1 << 27
"""Most logits in memory at a time (`CHUNK_FLOATS` in pipelines/engine/policy.py)."""
TREE_WIDTH = 512
"""Rows that share prefixes are laid out in trees up to this width (pipelines/engine/layout.py)."""
TRUNCATED = 6
DRAWN = 4
LISTED = 100
"""Bytes of a sampled token in Python's lists: its id, log-probability and entropy."""
AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
"""What torch asks of a processor before it calls it one with AVX-512."""
PACKED_STEPS = 64
"""Answers from which on float32 matrices are packed (pipelines/engine/decoding_weights.py)."""
FOUR_BITS = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4: half of one, a byte for each 64 and a float32 for 256 of these (pipelines/engine/quantization.py)."""
CRITIQUE_ROWS = 1024
"""Critiques decoded side by side (`CritiqueSampler` in pipelines/engine/critiques.py)."""
KEYLESS = frozenset({"conv", "linear_attention", "moe", "mlp"})
"""Kinds of layers without keys and values."""
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
    key_layers: int | None = None
    """Layers that keep keys and values of every position; None for all."""
    state: int = 0
    """Numbers that a row's recurrent states hold, in all layers."""

    @classmethod
    def of(cls, config: Any, parameters: int) -> Shape:
        """From a transformers text configuration; families without a field have its usual value."""
        hidden, heads = int(config.hidden_size), int(getattr(config, "num_attention_heads", None) or 1)
        kinds = getattr(config, "layer_types", None) or []
        states = sum(kind in STATES for kind in kinds)
        return cls(
            parameters=parameters,
            layers=int(config.num_hidden_layers),
            hidden=hidden,
            intermediate=int(getattr(config, "intermediate_size", None) or 4 * hidden),
            heads=heads,
            key_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_size=int(getattr(config, "head_dim", None) or hidden // heads),
            vocabulary=int(config.vocab_size),
            key_layers=None if states == 0 else sum(kind not in KEYLESS for kind in kinds),
            state=states * _state_of(config, hidden),
        )

    @property
    def ends(self) -> int:
        """Parameters of an embedding and an output head, each with weights of its own."""
        return min(self.parameters, 2 * self.vocabulary * self.hidden)

    @property
    def keys(self) -> int:
        """Numbers that the keys and values of one position are, in all layers that keep them."""
        layers = self.layers if self.key_layers is None else self.key_layers
        return layers * 2 * self.key_heads * self.head_size

    def adapters(self, rank: int) -> int:
        """Parameters of adapters on the attention's and the MLP's matrices."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        return rank * self.layers * (attention + 3 * (self.hidden + self.intermediate))


def _state_of(config: Any, hidden: int) -> int:
    """Numbers of one layer's recurrent state: those of a delta rule or of Mamba's heads, and of the convolution before it."""

    def size(*names: str) -> int:
        return next((int(value) for name in names if (value := getattr(config, name, None))), 0)

    heads = size("linear_num_value_heads", "linear_num_heads")
    if heads:
        keys = size("linear_key_head_dim", "linear_head_dim")
        values = size("linear_value_head_dim", "linear_head_dim")
        channels, state = heads * (2 * keys + values), heads * keys * values
    else:
        state_size = size("mamba_d_state", "ssm_state_size", "state_size")
        inner = size("mamba_d_ssm") or size("mamba_num_heads") * size("mamba_head_dim")
        inner = inner or hidden * (size("mamba_expand", "expand") or (2 if state_size else 1))
        groups = size("mamba_n_groups", "n_groups", "mamba_ngroups") or 1
        channels, state = inner + 2 * groups * state_size, inner * state_size
    return state + 4 * channels


@dataclass(frozen=True)
class Device:
    """Where a stage computes, as far as it changes what decoding holds."""

    gpu: bool = False
    avx512: bool = False
    """Whether its processor has the instructions in `AVX512`."""
    cards: int = 1
    """GPUs of the machine, one for each process."""


CPU = Device()


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
    packed: int
    cache: int
    kept: int = 0
    gathered: int = 0
    offloaded: int = 0
    gpu: bool = False
    """Whether all but `process`, `commit` and `offloaded` is on a GPU."""

    @property
    def phases(self) -> dict[str, int]:
        """What is held at once where the stage computes, beside the process."""
        state = self.weights + self.optimizer
        kept_of_pass = self.activations + self.logits + (0 if self.gpu else self.offloaded)
        phases = {
            "training": state + self.kept + max(self.gradients, kept_of_pass),
            "commit": state + self.kept + self.gradients + (0 if self.gpu else self.commit),
            "decoding": state + self.packed + self.cache,
        }
        return phases | ({"gathered": state + self.gathered} if self.gathered else {})

    @property
    def peak(self) -> int:
        """The process and its fullest phase: of a GPU's memory where it computes on one."""
        return self.process + max(self.phases.values())

    @property
    def host(self) -> int:
        """Of the machine's own memory."""
        return self.process + self.commit + self.offloaded if self.gpu else self.peak

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "phases": self.phases, "peak": self.peak, "host": self.host}


@dataclass(frozen=True)
class Load:
    """What a stage computes at once."""

    tokens: int
    """Of its largest pass, N."""
    scored: int
    """Of them, those whose logits are made, M."""
    width: int
    """Of a packed row, W."""
    rows: int = 0
    """Decoded side by side in one process, R."""
    length: int = 0
    """Their positions, C."""
    truncated: bool = False
    """Whether top-k, top-p or min-p cut the distribution that tokens are scored by."""
    models: int = 0
    """Held beside the stage's own, each of its size."""
    decoded: int = 1
    """Models that decode the same tokens."""
    steps: int = 0
    """Most tokens of an answer that is decoded."""
    trains: bool = True
    listed: int = 0
    """Tokens in Python's lists."""


Planned = Sft | Rlvr | Preference | RewardModel | Sample


def known(node: Node) -> bool:
    """Whether it can be said what a stage needs: those that train or sample here."""
    elsewhere = (isinstance(node.settings, Sample) and node.settings.model) or getattr(node.settings, "engine", None)
    return isinstance(node.settings, Planned) and not elsewhere


def of_stage(node: Node, shape: Shape, *, prompt_tokens: int | None = None, device: Device = CPU) -> Needs:
    """What a stage of the recipe needs.

    Args:
        node: a stage that is `known`.
        prompt_tokens: length of a prompt; default: the recipe's bound, else `PROMPT_TOKENS`.
        device: default: a CPU without AVX-512.
    """
    section: Planned = node.settings
    load = _load(node, prompt_length(node, prompt_tokens))
    value = 2 if node.recipe.model.dtype == "bfloat16" else 4
    lora = getattr(section, "lora", None)
    trained = (shape.parameters if lora is None else shape.adapters(lora.rank)) if load.trains else 0
    moments = 8 * trained
    if load.trains and not isinstance(section, Sample) and section.optimizer.kind == "muon":
        moments -= 4 * (trained - shape.ends if lora is None else trained)
    shards = getattr(section, "processes", 1)
    stored = 2 if node.recipe.model.weights_dtype == "bfloat16" else 4
    updated = stored if lora is None else 4
    quantized = is_quantized(section)
    as_numbers = shape.ends if quantized else shape.parameters
    weights = (stored + (2 if value < stored else 0)) * as_numbers * load.decoded
    weights += int(FOUR_BITS * (shape.parameters - as_numbers)) * load.decoded
    if load.trains and shards > 1:
        weights = (weights if isinstance(section, Rlvr) and section.full_copy else 0) + _sharded(
            shape, shards, stored, value
        )
    weights += stored * shape.parameters * load.models
    cached = value if device.gpu else 4
    packs = (
        not quantized
        and device.avx512
        and not device.gpu
        and value == stored
        and load.steps >= (PACKED_STEPS if value == 4 else 1)
    )
    packed = stored * shape.parameters * load.decoded if packs else 0
    cache = load.rows * load.length * shape.keys * cached
    cache += load.rows * shape.state * 4
    cache += DRAWN * load.rows * shape.vocabulary * 4
    keeps = (
        device.gpu and not shape.state and isinstance(section, Rlvr) and section.cuda_graphs and section.sampler is None
    )
    logits = min(load.scored * shape.vocabulary, CHUNK) * 4 * (TRUNCATED if load.truncated else 1)
    if load.trains and load.scored and lora is None:
        logits += stored * shape.vocabulary * shape.hidden
    compiled = device.gpu and not shape.state and node.recipe.model.compiles(shape.parameters, shards)
    activations, offloaded = _activations(shape, load, value, section, compiled=compiled)
    return Needs(
        stage=node.name,
        process=PROCESS,
        weights=weights,
        gradients=updated * trained // (shards if getattr(section, "gradient_sync", "pass") == "pass" else 1),
        optimizer=moments // shards,
        commit=(updated * trained + moments) // shards,
        activations=activations,
        offloaded=offloaded,
        logits=logits,
        packed=packed,
        cache=cache + LISTED * load.listed,
        kept=(cache if keeps else 0) + (packed if value == 2 else 0),
        gathered=stored * shape.parameters if load.trains and shards > 1 and _is_gathered(section) else 0,
        gpu=device.gpu,
    )


def _sharded(shape: Shape, shards: int, stored: int, value: int) -> int:
    """Bytes of a process's weights: its shard, and what a pass has in full: the ends, a block and the next one."""
    block = (shape.parameters - shape.ends) // max(1, shape.layers)
    return stored * (shape.parameters // shards + shape.ends) + 2 * min(stored, value) * block


def _is_gathered(section: Planned) -> bool:
    """Whether sharded weights are whole for a moment, where no copy is kept anyway."""
    return isinstance(section, RewardModel) or (isinstance(section, Sft | Preference) and section.lora is not None)


def _load(node: Node, prompt: int) -> Load:
    """The largest pass and what is decoded, with prompts of `prompt` tokens."""
    section: Planned = node.settings
    if isinstance(section, Sft):
        tokens = min(section.micro_batch_tokens, max(section.tokens_per_step, section.max_length))
        return Load(tokens, tokens, section.max_length)
    if isinstance(section, Preference):
        return _of_preference(section, min(prompt, section.max_length - 1))
    if isinstance(section, RewardModel):
        return _of_reward_model(section, min(prompt, section.max_length - 1))
    if isinstance(section, Sample):
        return _of_sample(node, section, prompt)
    group, answer = largest(section)
    served, length, completions = section.sampler is not None, prompt + answer, section.prompts * group * answer
    prompts = section.prompts * prompt * (1 if section.share_prefixes else group)
    tokens = max(length, min(section.micro_batch_tokens, prompts + completions))
    return Load(
        tokens,
        scored=min(tokens, completions),
        width=max(length, min(TREE_WIDTH, prompt + group * answer)),
        rows=0 if served else min(section.decode_rows, -(-section.prompts // section.processes) * group),
        length=length,
        steps=0 if served else answer,
        truncated=_truncated(section.sampling),
        models=section.staleness + int(section.divergence is not None and section.lora is None),
    )


def largest(section: Rlvr) -> tuple[int, int]:
    """The most rollouts of a group, and the most tokens of one, over all sources."""
    own = section.by_source.values()
    return (
        max([section.group_size, *(each.group_size or 0 for each in own)]),
        max([section.sampling.max_tokens, *(each.max_tokens or 0 for each in own)]),
    )


def decoded_rows(node: Node, prompt_tokens: int | None = None) -> int:
    """Rows that a stage decodes side by side in one process."""
    return _load(node, prompt_length(node, prompt_tokens)).rows


def prompt_length(node: Node, prompt_tokens: int | None = None) -> int:
    """Tokens of a prompt: those that are given, else the recipe's bound, else `PROMPT_TOKENS`."""
    bounds = [getattr(data.settings, "max_prompt_tokens", None) for data in node.ancestors()]
    return prompt_tokens or next((bound for bound in bounds if bound), PROMPT_TOKENS)


def _truncated(sampling: Sampling) -> bool:
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0


def _of_preference(section: Preference, prompt: int) -> Load:
    """Whole pairs, or labelled answers of the same two lengths, up to the tokens of a pass."""
    answer = section.max_length - prompt
    pair = prompt * (1 if section.share_prefixes else 2) + 2 * answer
    tokens = max(pair, min(section.micro_batch_tokens, section.pairs_per_step * pair))
    width = max(section.max_length, min(TREE_WIDTH, pair))
    return Load(tokens, scored=tokens * 2 * answer // pair, width=width)


def _of_reward_model(section: RewardModel, prompt: int) -> Load:
    """Pairs up to the tokens of a pass, in which both conversations count whole though they share the prompt; or answers in steps."""
    if section.step_labels is not None:
        tokens = max(section.max_length, min(section.micro_batch_tokens, section.pairs_per_step * section.max_length))
        return Load(tokens, scored=0, width=section.max_length)
    answer, pair = section.max_length - prompt, 2 * section.max_length
    pairs = max(1, min(section.micro_batch_tokens // pair, section.pairs_per_step))
    tokens = pairs * (prompt + 2 * answer)
    text = bool({*ANSWER_TEXT, *CRITIQUE_TEXT} & set(bound_loss(section).needs))
    width = max(section.max_length, min(TREE_WIDTH, prompt + 2 * answer))
    writes_critiques = section.critique is not None and section.critique.source == "own"
    return Load(
        tokens, scored=2 * answer * pairs if text else 0, width=width,
        rows=CRITIQUE_ROWS if writes_critiques else 0, length=section.max_length if writes_critiques else 0,
    )  # fmt: skip


def _of_sample(node: Node, section: Sample, prompt: int) -> Load:
    """Rows of whole problems; prompts are read once for all of a problem's rows."""
    stored = [getattr(node.recipe.node(name).settings, "sampling", None) for name in node.named("data")]
    prompt += sum(each.max_tokens for each in stored if each is not None)  # completions that are continued
    length = prompt + section.sampling.max_tokens
    shard = max(section.k, section.rows_per_shard // section.k * section.k)
    if section.problems is not None:
        shard = min(shard, section.problems * section.k)
    served = section.sampler is not None
    rows = 0 if served else min(section.decode_rows, shard)
    decoded = 1 if section.guidance is None else 2
    searches = section.search is not None and section.search.score.kind == "reward_model"
    scorers = int(section.reference is not None) + len(node.named("reward_model")) + int(searches)
    tokens = max(-(-rows // section.k) * prompt, min(section.micro_batch_tokens, shard * length) if scorers else 0)
    return Load(
        tokens,
        scored=min(section.micro_batch_tokens, shard * length) if section.reference is not None else 0,
        width=0, rows=rows * decoded, length=length, models=scorers, decoded=decoded,
        steps=0 if served else section.sampling.max_tokens, trains=False,
        listed=2 * shard * section.sampling.max_tokens,
    )  # fmt: skip


def _activations(shape: Shape, load: Load, value: int, section: Planned, compiled: bool) -> tuple[int, int]:
    """Bytes that the backward pass reads again, where the stage computes and offloaded; of a pass without one, what a layer holds."""
    if isinstance(section, Sample):
        return load.tokens * value * 4 * (shape.hidden + shape.intermediate), 0
    queries = shape.heads * shape.head_size
    keys = shape.key_heads * shape.head_size
    layer, residuals = 8 * shape.hidden + 6 * queries + 4 * shape.intermediate, 0
    if compiled and not section.gradient_checkpointing:
        layer, residuals = 2 * (shape.hidden + queries + keys) + 3 * shape.intermediate, 2 * 4 * shape.hidden
    layer += load.width
    if section.lora is not None:
        layer += 2 * queries + 2 * keys + 2 * shape.hidden + 2 * shape.intermediate
    blocks = shape.layers * (shape.hidden * value if section.gradient_checkpointing else value * layer + residuals)
    if section.activation_offload:
        copies = (4 if section.gradient_checkpointing else 4 + 3 * shape.layers) * shape.hidden * value
        return load.tokens * (value * layer + residuals), load.tokens * (blocks + copies)
    recomputed = value * layer if section.gradient_checkpointing else 0
    return load.tokens * (blocks + recomputed), 0


def least(needs: Needs, shape: Shape) -> int:
    """Bytes that no setting of the stage but adapters gets below: state, and the logits of 64 tokens (one chunk at least)."""
    return needs.weights + needs.gradients + needs.optimizer + min(needs.logits, 64 * shape.vocabulary * 4)
