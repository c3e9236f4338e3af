"""Answers in the making: drawn step by step, each from an RNG stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pipelines.contract.rollout import Completion, Sampler
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import stream_ids
from pipelines.data.records import Problem, Stop
from pipelines.recipe.search import Beam, Particles, Search


@dataclass(frozen=True)
class Question:
    """What an answer is wanted to."""

    prompt: Sequence[int]
    """Token ids up to where the answer begins."""
    stream: int
    """RNG stream of the answer that the model would give without a search."""
    text: Callable[[list[int]], str]
    """An answer's text, as it is judged."""
    problem: Problem | None = None
    """For judges and verifiers."""


@dataclass
class Path:
    """An answer, or as much of one as is drawn."""

    question: Question
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    """Log-probability of each token under the distribution it was drawn from, in nats."""
    entropy: list[float] = field(default_factory=list)
    """Of these distributions, in nats, where asked for."""
    stop: Stop | None = None
    """Why it ended; None while it goes on."""
    steps: int = 0
    score: float = float("nan")

    def copy(self) -> Path:
        """The same, to be continued otherwise."""
        return Path(
            self.question, list(self.tokens), list(self.logp), list(self.entropy), self.stop, self.steps, self.score
        )

    def completion(self, *, entropy: bool) -> Completion:
        """As the sampler would return it."""
        assert self.stop is not None
        return Completion(self.tokens, self.logp, self.stop, self.entropy if entropy else None)


@dataclass
class Slot:
    """One of the places that a question's paths are drawn in: no random number of its stream is used twice."""

    stream: int
    drawn: int = 0
    """Tokens drawn so far."""


def slots(question: Question, count: int) -> list[Slot]:
    """The places of a question; the first one draws what the model would answer without a search."""
    return [Slot(stream) for stream in (question.stream, *stream_ids(count - 1, "search", question.stream))]


class Drawer:
    """Continues paths to their ends, or by a step.

    Args:
        sampler: draws answers to their ends.
        pausing: the same, but also stops after tokens that may complete a separator; None where steps have none.
        ends: token ids that end an answer.
        decode: text of a completion.
    """

    def __init__(
        self, sampler: Sampler, pausing: Sampler | None, ends: Sequence[int], decode: Callable[[list[int]], str],
        search: Search, *, entropy: bool,
    ) -> None:  # fmt: skip
        self.sampler, self.pausing, self.ends, self.decode = sampler, pausing, frozenset(ends), decode
        self.search, self.entropy = search, entropy

    def to_the_end(self, pairs: Sequence[tuple[Path, Slot]], sampling: Sampling) -> None:
        """Draw the rest of each path."""
        self._extend(self.sampler, pairs, [sampling.max_tokens - len(path.tokens) for path, _ in pairs], sampling)

    def step(self, pairs: Sequence[tuple[Path, Slot]], sampling: Sampling) -> None:
        """Draw one step more of each path; the last step that may be counted goes to the end."""
        search = self.search
        assert isinstance(search, Beam | Particles)
        last = [pair for pair in pairs if pair[0].steps >= search.most - 1]
        if last:
            self.to_the_end(last, sampling)
        begins = {id(path): len(path.tokens) for path, _ in pairs}
        waiting = [pair for pair in pairs if pair[0].stop is None]
        while waiting:
            rooms = []
            for path, _ in waiting:
                room = sampling.max_tokens - len(path.tokens)
                if search.step_tokens is not None:
                    room = min(room, search.step_tokens - (len(path.tokens) - begins[id(path)]))
                rooms.append(room)
            self._extend(self.pausing or self.sampler, waiting, rooms, sampling)
            waiting = [pair for pair in waiting if not self._step_ended(pair[0], begins[id(pair[0])])]
        for path, _ in pairs:
            path.steps += 1

    def _step_ended(self, path: Path, begin: int) -> bool:
        search = self.search
        assert isinstance(search, Beam | Particles)
        if path.stop is not None or (search.step_tokens is not None and len(path.tokens) - begin >= search.step_tokens):
            return True
        if search.separator is None:
            return False
        text = self.decode(path.tokens)[len(self.decode(path.tokens[:begin])) :]
        return bool(text.rpartition(search.separator)[0].strip())

    def _extend(
        self, sampler: Sampler, pairs: Sequence[tuple[Path, Slot]], rooms: Sequence[int], sampling: Sampling
    ) -> None:
        """Add at most so many tokens to each path; of what is drawn beyond a path's own room nothing is used."""
        completions = sampler.extend(
            [[*path.question.prompt, *path.tokens] for path, _ in pairs],
            sampling.model_copy(update={"max_tokens": max(rooms)}),
            torch.Generator(),  # not used: every path has a stream
            entropy=self.entropy,
            streams=[(slot.stream, slot.drawn) for _, slot in pairs],
        )
        for (path, slot), room, drawn in zip(pairs, rooms, completions, strict=True):
            count = min(room, len(drawn.tokens))
            path.tokens += drawn.tokens[:count]
            path.logp += drawn.logp[:count]
            path.entropy += (drawn.entropy or [])[:count]
            slot.drawn += count
            if count and path.tokens[-1] in self.ends:
                path.stop = Stop.END
            elif drawn.stop == Stop.ERROR and not path.tokens:
                path.stop = Stop.ERROR
            elif len(path.tokens) >= sampling.max_tokens or (count < room and drawn.stop != Stop.END):
                path.stop = Stop.LENGTH  # at its limit, or where the context is full


def pause_ids(tokenizer: object, separator: str) -> list[int]:
    """Token ids that may complete a separator: those whose text holds its last character, or part of a character that is not ASCII."""
    last = separator[-1]
    count = len(tokenizer)  # type: ignore[arg-type]
    texts = tokenizer.batch_decode([[token] for token in range(count)])  # type: ignore[attr-defined]
    return [token for token, text in enumerate(texts) if last in text or (ord(last) > 127 and "\ufffd" in text)]
