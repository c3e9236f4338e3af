"""Decoding in steps of fixed shapes, which a GPU replays as CUDA graphs: no Python and no waiting between tokens.

A step reads and writes buffers in place and depends on no value that the host would have to know. Its shapes come from two
short ladders, of rows and of key positions, so a handful of graphs serves a whole run. Every `EVERY` tokens the host looks
who is still going; rows that are done then make room. On the CPU the same steps run one by one: slower than the
sampler's own loop, but the same code, which is how it is tested.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from pipelines.engine import distribution
from pipelines.engine.cache import Gaps, SlabCache, unpadded
from pipelines.engine.models import autocast
from pipelines.recipe.settings import Sampling

EVERY = 16
"""Tokens between two looks at who is done."""
COLUMNS = 128
"""Key positions grow by so many."""
WARM = 2
"""Steps before a capture, in which libraries allocate what they keep."""


def rung(rows: int) -> int:
    """The smallest number of rows on the ladder 8, 16, 24, 32, 48, 64, 96, ... that is enough.

    >>> [rung(n) for n in (1, 9, 20, 33, 500, 513)]
    [8, 16, 24, 48, 512, 768]
    """
    high = max(8, 1 << (rows - 1).bit_length())
    return high * 3 // 4 if high >= 32 and rows <= high * 3 // 4 else high


def columns(positions: int) -> int:
    """The smallest multiple of `COLUMNS` that is enough."""
    return -(-positions // COLUMNS) * COLUMNS


def warm_up(run: Callable[[], None]) -> None:
    """Run on a side stream, as a capture wants it beforehand."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run()
    torch.cuda.current_stream().wait_stream(side)


def record(run: Callable[[], None], other: Any) -> Any:
    """What `run` does to the GPU, to be replayed, in the memory of another graph; other threads may go on using the GPU."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=None if other is None else other.pool(), capture_error_mode="thread_local"):
        run()
    return graph


class FixedLayer(DynamicLayer):
    """Keys and values of one layer in a buffer; where a step writes is a tensor, so that a graph can be replayed."""

    def __init__(self, keys: Tensor, values: Tensor, view: _View) -> None:
        super().__init__()
        self.key_buffer, self.value_buffer, self.view = keys, values, view
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, 1, dim] at the step's position; returns as many positions as the step may look at."""
        rows, wide = self.view.rows, self.view.wide
        for buffer, new in ((self.key_buffer, key_states), (self.value_buffer, value_states)):
            buffer[:rows].index_copy_(2, self.view.at, new.to(buffer.dtype))
        return self.key_buffer[:rows, :, :wide], self.value_buffer[:rows, :, :wide]


class _View:
    """Which part of the buffers a step uses."""

    def __init__(self, at: Tensor) -> None:
        self.at = at
        """int64 [1], the position that is written next."""
        self.rows = self.wide = 0


class FixedDecoder:
    """Continues prefilled prompts in steps of fixed shapes.

    Args:
        model: a causal LM whose layers all keep keys and values in full.
        stop: int64 [S], the token ids that end a completion, on the model's device.
        pad: fed to rows that are done.
        dtype: "float32" or "bfloat16" (autocast). The caller puts `RoundedWeights` in place.
        context: most positions of the model.
    """

    def __init__(self, model: PreTrainedModel, *, stop: Tensor, pad: int, dtype: str, context: int) -> None:
        self.model, self.stop, self.pad, self.dtype, self.context = model, stop, pad, dtype, context
        self.device = next(model.parameters()).device
        self.captures = self.device.type == "cuda"
        self.release()

    def release(self) -> None:
        """Forget graphs and buffers; the next call makes them anew."""
        self.rows = self.wide = self.long = 0
        self.cache: Cache | None = None
        self.graphs: dict[tuple[int, int, str, bool], Any] = {}

    def decode(
        self,
        cache: SlabCache,
        logits: Tensor,
        of: Tensor,
        gaps: Gaps,
        steps: int,
        sampling: Sampling,
        generator: torch.Generator,
        entropy: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw up to `steps` tokens per sample.

        Args:
            cache: keys and values of the prompts.
            logits: [U, V] behind each prompt.
            of: int64 [N], the prompt of each sample.
            gaps: where each prompt is padded.

        Returns:
            tokens int64 [N, steps] (-1 where a sample had ended), their log-probabilities and, where asked for, entropies,
            both float32 [N, steps].
        """
        count, width = len(of), cache.get_seq_length()
        live = rung(count)
        self._room(cache, live, columns(width + steps + EVERY), steps)
        self._load(cache, of, gaps, width)
        self.points[:count, :steps] = torch.rand(count, steps, generator=generator, device=self.device)
        sample = torch.arange(count, device=self.device)
        whole = (self.tokens.new_full((count, steps), -1), self.logps.new_zeros(count, steps))
        spread = self.spreads.new_zeros(count, steps) if entropy else None
        self.live[count:live] = False
        self._note(logits[of], sampling, count, entropy)
        done = 1
        while done < steps:
            going = self.live[:live].nonzero().squeeze(1)
            if len(going) == 0:
                break
            if rung(len(going)) < live:
                self._save(sample, whole, spread)
                live = rung(len(going))
                sample = self._compact(going, sample, width + done, live)
            wide = columns(width + done + EVERY)
            for _ in range(min(EVERY, steps - done)):
                self._step(live, wide, sampling, entropy)
                done += 1
        self._save(sample, whole, spread)
        return *whole, spread

    def _room(self, cache: SlabCache, rows: int, wide: int, long: int) -> None:
        """Buffers for so many rows, key positions and tokens; larger ones only where the present are too small."""
        if self.rows >= rows and self.wide >= wide and self.long >= long + WARM + 1:
            return
        self.rows, self.wide = max(rows, self.rows), max(wide, self.wide)
        self.long = max(long + WARM + 1, self.long)
        self.graphs = {}

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        self.fed, self.place = new(self.rows, 1, dtype=torch.int64), new(self.rows, 1, dtype=torch.int64)
        self.gaps, self.live = new(self.rows, dtype=torch.int64), new(self.rows, dtype=torch.bool)
        self.at, self.column, self.start = (new(1, dtype=torch.int64) for _ in range(3))
        self.tokens, self.points = new(self.rows, self.long, dtype=torch.int64), new(self.rows, self.long)
        self.logps, self.spreads = new(self.rows, self.long), new(self.rows, self.long)
        self.view = _View(self.at)
        layers: list[Any] = []
        for layer in cache.filled_layers():
            assert layer.keys is not None
            shape = (self.rows, layer.keys.shape[1], self.wide, layer.keys.shape[3])
            keys, values = (new(*shape, dtype=layer.keys.dtype) for _ in range(2))
            layers.append(FixedLayer(keys, values, self.view))
        self.cache = Cache(layers=layers)

    def _layers(self) -> list[FixedLayer]:
        assert self.cache is not None
        return [layer for layer in self.cache.layers if isinstance(layer, FixedLayer)]

    def _load(self, cache: SlabCache, of: Tensor, gaps: Gaps, width: int) -> None:
        """Fill the buffers with every sample's prompt."""
        count = len(of)
        for mine, theirs in zip(self._layers(), cache.filled_layers(), strict=True):
            assert theirs.keys is not None and theirs.values is not None
            mine.key_buffer[:count, :, :width] = theirs.keys[of]
            mine.value_buffer[:count, :, :width] = theirs.values[of]
        self.gaps.zero_()
        self.gaps[:count] = gaps.sizes[of]
        self.start.fill_(gaps.start)
        self.place.fill_(0)
        self.place[:count, 0] = width - gaps.sizes[of]
        self.at.fill_(width)
        self.column.zero_()
        self.tokens.fill_(-1)
        self.live.fill_(True)

    def _step(self, rows: int, wide: int, sampling: Sampling, entropy: bool) -> None:
        """One token for each of the first rows, looking at so many positions."""
        if not self.captures:
            self._token(rows, wide, sampling, entropy)
            return
        key = (rows, wide, sampling.model_dump_json(), entropy)
        if key not in self.graphs:
            self.graphs[key] = self._capture(rows, wide, sampling, entropy)
        self.graphs[key].replay()

    def _capture(self, rows: int, wide: int, sampling: Sampling, entropy: bool) -> Any:
        """The step as a graph; the buffers are as before."""
        run = partial(self._token, rows, wide, sampling, entropy)
        with self._kept():
            warm_up(run)
        return record(run, next(iter(self.graphs.values()), None))

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Put every small buffer back; keys written meanwhile are written again before anything looks at them."""
        state = (self.fed, self.place, self.live, self.at, self.column, self.tokens, self.logps, self.spreads)
        before = [one.clone() for one in state]
        yield
        for one, old in zip(state, before, strict=True):
            one.copy_(old)

    def _token(self, rows: int, wide: int, sampling: Sampling, entropy: bool) -> None:
        """Feed the last tokens and draw the next: what a graph holds."""
        self.view.rows, self.view.wide = rows, wide
        spot = torch.arange(wide, device=self.device)
        seen = unpadded(self.start, self.gaps[:rows], wide) & (spot <= self.at)
        inputs = {
            "input_ids": self.fed[:rows],
            "attention_mask": seen[:, None, None],
            "position_ids": self.place[:rows].clamp(max=self.context - 1),
            "past_key_values": self.cache,
            "use_cache": True,
        }
        with autocast(self.dtype, self.device):
            logits = self.model(**inputs).logits[:, -1]
            self.place[:rows] += 1
            self.at += 1
            self._note(logits, sampling, rows, entropy)

    def _note(self, logits: Tensor, sampling: Sampling, rows: int, entropy: bool) -> None:
        """Draw a token for each of the first rows and write it down."""
        live = self.live[:rows]
        token, logp = distribution.pick(logits, sampling, self.points[:rows].index_select(1, self.column))
        self.tokens[:rows].index_copy_(1, self.column, torch.where(live, token, -1)[:, None])
        self.logps[:rows].index_copy_(1, self.column, torch.where(live, logp, 0.0)[:, None])
        if entropy:
            spread = torch.where(live, distribution.entropy(logits, sampling), 0.0)
            self.spreads[:rows].index_copy_(1, self.column, spread[:, None])
        self.live[:rows] = live & (token[:, None] != self.stop).all(1)
        self.fed[:rows] = torch.where(live, token, self.pad)[:, None]
        self.column += 1

    def _save(self, sample: Tensor, whole: tuple[Tensor, Tensor], spread: Tensor | None) -> None:
        """Copy what the present rows have said so far to their samples."""
        count, steps = len(sample), whole[0].shape[1]
        whole[0][sample], whole[1][sample] = self.tokens[:count, :steps], self.logps[:count, :steps]
        if spread is not None:
            spread[sample] = self.spreads[:count, :steps]

    def _compact(self, going: Tensor, sample: Tensor, filled: int, rows: int) -> Tensor:
        """Move the rows that go on to the front; returns the sample of each."""
        count = len(going)
        for layer in self._layers():
            for buffer in (layer.key_buffer, layer.value_buffer):
                buffer[:count, :, :filled] = buffer[going, :, :filled]
        for one in (self.fed, self.place, self.gaps, self.tokens, self.logps, self.spreads, self.points):
            one[:count] = one[going]
        self.live[:count] = True
        self.live[count:rows] = False
        return sample[going]
