"""Decoding in steps of fixed shapes, which a GPU replays as CUDA graphs: no Python and no synchronisation between tokens.

A step reads and writes buffers in place and depends on no value that the host would have to know. Its shapes come from two
short ladders, of rows and of key positions, so a few graphs serve a whole run. Every `EVERY` tokens the host reads which
rows are unfinished, and the finished ones are compacted away. On the CPU the same steps run one by one: slower than the
sampler's own loop, but the same code, which is how it is tested.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from pipelines.contract.sampling import Sampling
from pipelines.engine import attention, distribution
from pipelines.engine.cache import Gaps, SlabCache, unpadded
from pipelines.engine.models import autocast

EVERY = 16
"""Tokens between two reads of which rows are finished."""
COLUMNS = 128
"""The number of key positions is a multiple of this."""
WARM = 2
"""Eager steps before a capture, in which libraries allocate their workspaces."""
MOST_GRAPHS = 256
"""Graphs that are kept. Methods that change the temperature from step to step would add some for ever."""


def rung(rows: int) -> int:
    """The smallest number of rows on the ladder 8, 16, 24, 32, 48, 64, 96, ... that is enough.

    >>> [rung(n) for n in (1, 9, 20, 33, 500, 513)]
    [8, 16, 24, 48, 512, 768]
    """
    power = max(8, 1 << (rows - 1).bit_length())
    return power * 3 // 4 if power >= 32 and rows <= power * 3 // 4 else power


def columns(positions: int) -> int:
    """The smallest multiple of `COLUMNS` that is enough."""
    return -(-positions // COLUMNS) * COLUMNS


@cache
def side_stream() -> Any:
    """The stream of all warm-ups and captures: libraries keep a workspace for each stream that they have run on."""
    return torch.cuda.Stream()


def warm_up(run: Callable[[], None]) -> None:
    """Run on a side stream, as PyTorch asks for before a capture."""
    side = side_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run()
    torch.cuda.current_stream().wait_stream(side)


def record(run: Callable[[], None], other: Any) -> Any:
    """Capture `run` as a CUDA graph in the memory pool of another graph; other threads may use the GPU meanwhile."""
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    pool = None if other is None else other.pool()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=side_stream(), capture_error_mode="thread_local"):
            run()
    finally:
        torch.cuda.set_stream(before)  # a capture that fails leaves its own as the current one
    return graph


class FixedLayer(DynamicLayer):
    """Keys and values of one layer in a buffer; where a step writes is a tensor, so that a graph can be replayed."""

    def __init__(self, keys: Tensor, values: Tensor, view: _StepView) -> None:
        super().__init__()
        self.key_buffer, self.value_buffer, self.view = keys, values, view
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, 1, dim] at the step's position; return the keys and values of the step's key positions."""
        rows, key_positions = self.view.rows, self.view.key_positions
        for buffer, new in ((self.key_buffer, key_states), (self.value_buffer, value_states)):
            buffer[:rows].index_copy_(2, self.view.write_position, new.to(buffer.dtype))
        return self.key_buffer[:rows, :, :key_positions], self.value_buffer[:rows, :, :key_positions]


class FixedCache(Cache):
    """One `FixedLayer` per layer; compiled blocks call it as it is."""

    fixed_shapes = True


class _StepView:
    """Which part of the buffers a step uses: the first `rows` and the first `key_positions`."""

    def __init__(self, write_position: Tensor) -> None:
        self.write_position = write_position
        """int64 [1], the position that is written next."""
        self.rows = self.key_positions = 0


class FixedDecoder:
    """Continues prefilled prompts in steps of fixed shapes.

    Args:
        model: a causal LM, or two as one (`Guided`), whose layers all keep keys and values in full.
        stop: int64 [S], the token ids that end a completion, on the model's device.
        pad: input of rows that are finished.
        dtype: "float32" or "bfloat16" (autocast). The caller puts `DecodingWeights` in place.
        context: the most positions the model can read.
    """

    def __init__(self, model: torch.nn.Module, *, stop: Tensor, pad: int, dtype: str, context: int) -> None:
        self.model, self.stop, self.pad, self.dtype, self.context = model, stop, pad, dtype, context
        self.device = next(model.parameters()).device
        self.captures = self.device.type == "cuda"
        self.release()

    def release(self) -> None:
        """Free graphs and buffers; the next call allocates them again."""
        self.rows = self.key_positions = self.length = 0
        self.cache: Cache | None = None
        self.graphs: dict[tuple[int, int, str, bool], Any] = {}

    def decode(
        self,
        cache: SlabCache,
        logits: Tensor,
        prompt_of: Tensor,
        gaps: Gaps,
        steps: int,
        sampling: Sampling,
        generator: torch.Generator | None,
        entropy: bool,
        points: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw up to `steps` tokens per sample.

        With 20 samples 24 rows are decoded (`rung(20)`); the last four are never live. The host reads which rows are
        unfinished after the tokens 1, 17, 33, ... If seven are after token 17, their keys and tokens move to the rows
        0 to 6, `sample` holds the sample of each of these rows, and the next steps decode 8 rows (`rung(7)`).

        Args:
            cache: keys and values of the prompts.
            logits: [U, V], the next-token logits after each prompt.
            prompt_of: int64 [N], the prompt of each sample.
            gaps: where each prompt is padded.
            steps: most tokens per sample.
            entropy: return the entropy of each token's distribution as well.
            points: float32 [N, steps], where in its distribution each token is drawn; default: from the generator.

        Returns:
            tokens int64 [N, steps] (-1 where a sample had ended), their log-probabilities and, where asked for, entropies,
            both float32 [N, steps].
        """
        count, width = len(prompt_of), cache.get_seq_length()
        rows = rung(count)
        self._ensure_buffers(cache, rows, columns(width + steps + EVERY), steps)
        self._load_prompts(cache, prompt_of, gaps, width)
        if points is None:
            points = torch.rand(count, steps, generator=generator, device=self.device)
        self.points[:count, :steps] = points
        sample = torch.arange(count, device=self.device)
        drawn = (self.tokens.new_full((count, steps), -1), self.logps.new_zeros(count, steps))
        entropies = self.entropies.new_zeros(count, steps) if entropy else None
        self.live[count:rows] = False
        self._draw_and_store(logits[prompt_of], sampling, count, entropy)
        done = 1
        while done < steps:
            unfinished = self.live[:rows].nonzero().squeeze(1)
            if len(unfinished) == 0:
                break
            if rung(len(unfinished)) < rows:
                self._copy_out(sample, drawn, entropies)
                rows = rung(len(unfinished))
                sample = self._compact(unfinished, sample, width + done, rows)
            key_positions = columns(width + done + EVERY)
            for _ in range(min(EVERY, steps - done)):
                self._step(rows, key_positions, sampling, entropy)
                done += 1
        self._copy_out(sample, drawn, entropies)
        return *drawn, entropies

    def _ensure_buffers(self, cache: SlabCache, rows: int, key_positions: int, length: int) -> None:
        """Allocate buffers for this many rows, key positions and tokens, unless the present ones are large enough."""
        if self.rows >= rows and self.key_positions >= key_positions and self.length >= length + WARM + 1:
            return
        self.rows, self.key_positions = max(rows, self.rows), max(key_positions, self.key_positions)
        self.length = max(length + WARM + 1, self.length)
        self.graphs, self.cache = {}, None  # their memory serves again

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        self.input_ids, self.position_ids = (
            zeros(self.rows, 1, dtype=torch.int64),
            zeros(self.rows, 1, dtype=torch.int64),
        )
        self.gaps, self.live = zeros(self.rows, dtype=torch.int64), zeros(self.rows, dtype=torch.bool)
        self.write_position, self.column, self.start = (zeros(1, dtype=torch.int64) for _ in range(3))
        self.tokens, self.points = zeros(self.rows, self.length, dtype=torch.int64), zeros(self.rows, self.length)
        self.logps, self.entropies = zeros(self.rows, self.length), zeros(self.rows, self.length)
        self.view = _StepView(self.write_position)
        layers: list[Any] = []
        for layer in cache.filled_layers():
            assert layer.keys is not None
            shape = (self.rows, layer.keys.shape[1], self.key_positions, layer.keys.shape[3])
            keys, values = (zeros(*shape, dtype=layer.keys.dtype) for _ in range(2))
            layers.append(FixedLayer(keys, values, self.view))
        self.cache = FixedCache(layers=layers)
        self.unmasked = zeros(1, dtype=self._layers()[0].key_buffer.dtype)

    def _layers(self) -> list[FixedLayer]:
        assert self.cache is not None
        return [layer for layer in self.cache.layers if isinstance(layer, FixedLayer)]

    def _load_prompts(self, cache: SlabCache, prompt_of: Tensor, gaps: Gaps, width: int) -> None:
        """Copy every sample's prompt into the buffers."""
        count = len(prompt_of)
        for layer, prompts in zip(self._layers(), cache.filled_layers(), strict=True):
            assert prompts.keys is not None and prompts.values is not None
            layer.key_buffer[:count, :, :width] = prompts.keys[prompt_of]
            layer.value_buffer[:count, :, :width] = prompts.values[prompt_of]
        self.gaps.zero_()
        self.gaps[:count] = gaps.sizes[prompt_of]
        self.start.fill_(gaps.start)
        self.position_ids.fill_(0)
        self.position_ids[:count, 0] = width - gaps.sizes[prompt_of]
        self.write_position.fill_(width)
        self.column.zero_()
        self.tokens.fill_(-1)
        self.live.fill_(True)

    def _step(self, rows: int, key_positions: int, sampling: Sampling, entropy: bool) -> None:
        """One token for each of the first rows, with attention over the first key positions."""
        if not self.captures:
            self._forward_and_draw(rows, key_positions, sampling, entropy)
            return
        key = (rows, key_positions, sampling.model_dump_json(exclude={"max_tokens"}), entropy)
        if key not in self.graphs:
            if len(self.graphs) >= MOST_GRAPHS:
                self.graphs = {}
            self.graphs[key] = self._capture(rows, key_positions, sampling, entropy)
        self.graphs[key].replay()

    def _capture(self, rows: int, key_positions: int, sampling: Sampling, entropy: bool) -> Any:
        """Capture the step as a graph; the buffers keep their contents."""
        run = partial(self._forward_and_draw, rows, key_positions, sampling, entropy)
        with self._buffers_restored():
            warm_up(run)
        return record(run, next(iter(self.graphs.values()), None))

    @contextlib.contextmanager
    def _buffers_restored(self) -> Iterator[None]:
        """Restore every small buffer afterwards; keys written meanwhile are overwritten before anything reads them."""
        buffers = (
            self.input_ids,
            self.position_ids,
            self.live,
            self.write_position,
            self.column,
            self.tokens,
            self.logps,
            self.entropies,
        )
        contents = [buffer.clone() for buffer in buffers]
        yield
        for buffer, content in zip(buffers, contents, strict=True):
            buffer.copy_(content)

    def _forward_and_draw(self, rows: int, key_positions: int, sampling: Sampling, entropy: bool) -> None:
        """One forward pass on the last tokens, and the draw of the next: this is what a graph holds."""
        self.view.rows, self.view.key_positions = rows, key_positions
        position = torch.arange(key_positions, device=self.device)
        attended = unpadded(self.start, self.gaps[:rows], key_positions) & (position <= self.write_position)
        inputs = {
            "input_ids": self.input_ids[:rows],
            "attention_mask": self.unmasked.masked_fill(~attended[:, None, None], float("-inf")),
            "position_ids": self.position_ids[:rows].clamp(max=self.context - 1),
            "past_key_values": self.cache,
            "use_cache": True,
        }
        with attention.grouped(self.model), autocast(self.dtype, self.device, cache=False):
            logits = self.model(**inputs).logits[:, -1]
            self.position_ids[:rows] += 1
            self.write_position += 1
            self._draw_and_store(logits, sampling, rows, entropy)

    def _draw_and_store(self, logits: Tensor, sampling: Sampling, rows: int, entropy: bool) -> None:
        """Draw a token for each of the first rows and store it with its log-probability."""
        live = self.live[:rows]
        token, logp = distribution.pick(logits, sampling, self.points[:rows].index_select(1, self.column))
        self.tokens[:rows].index_copy_(1, self.column, torch.where(live, token, -1)[:, None])
        self.logps[:rows].index_copy_(1, self.column, torch.where(live, logp, 0.0)[:, None])
        if entropy:
            entropies = torch.where(live, distribution.entropy(logits, sampling), 0.0)
            self.entropies[:rows].index_copy_(1, self.column, entropies[:, None])
        self.live[:rows] = live & (token[:, None] != self.stop).all(1)
        self.input_ids[:rows] = torch.where(live, token, self.pad)[:, None]
        self.column += 1

    def _copy_out(self, sample: Tensor, drawn: tuple[Tensor, Tensor], entropies: Tensor | None) -> None:
        """Copy the tokens, log-probabilities and entropies of the present rows to their samples."""
        count, steps = len(sample), drawn[0].shape[1]
        drawn[0][sample], drawn[1][sample] = self.tokens[:count, :steps], self.logps[:count, :steps]
        if entropies is not None:
            entropies[sample] = self.entropies[:count, :steps]

    def _compact(self, unfinished: Tensor, sample: Tensor, filled: int, rows: int) -> Tensor:
        """Move the unfinished rows to the front; return the sample of each."""
        count = len(unfinished)
        for layer in self._layers():
            for buffer in (layer.key_buffer, layer.value_buffer):
                buffer[:count, :, :filled] = buffer[unfinished, :, :filled]
        state = (self.input_ids, self.position_ids, self.gaps, self.tokens, self.logps, self.entropies, self.points)
        for buffer in state:
            buffer[:count] = buffer[unfinished]
        self.live[:count] = True
        self.live[count:rows] = False
        return sample[unfinished]
