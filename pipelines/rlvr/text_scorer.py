"""The scoring hook's engine: passages laid out like a step's rows, and the models that score them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.contract.scorer import POLICY, REFERENCE, Passage, TokenStatistics
from pipelines.data.marks import FIRST_ID
from pipelines.engine import distribution, models, parallel
from pipelines.engine.in_process import InProcess
from pipelines.engine.layout import Layout
from pipelines.engine.policy import Policy, frozen_policy
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.pack import padded
from pipelines.rlvr.passes import ForwardPasses

if TYPE_CHECKING:
    from pipelines.contract.lent_models import EarlierPolicy
    from pipelines.contract.rollout import Sampler
    from pipelines.engine.chat_model import ChatModel
    from pipelines.engine.reward_model import RewardScorer
    from pipelines.engine.tinker.engine import TinkerEngine

CHUNK_PASSES = 16
"""Passages are padded into tensors of about this many passes at a time: what is held in memory does not grow with their number."""
PLAIN = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
LOADING = threading.RLock()
"""transformers reads one model at a time: of two threads that read, the second finds its heads untied, and so does every later one."""

Loaded = TypeVar("Loaded")


def _log_prob(logits: Tensor, ids: Tensor, embeddings: Tensor) -> Tensor:
    return distribution.log_prob(logits, ids, PLAIN)[:, None]


LOG_PROB = TokenStatistics(1, _log_prob)
"""Log-probability in nats under the model's own distribution."""


class FrozenModels:
    """Models that score and are not trained, loaded once, when they are first asked; several threads may ask.

    Args:
        model: the recipe's section, for data type and permissions.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._policies: dict[str, Policy] = {}
        self._tokenizers: dict[str, Any] = {}
        self._reward_models: dict[str, RewardScorer] = {}
        self._language_models: dict[str, ChatModel] = {}

    def policy(self, path: str) -> Policy:
        """The model of a folder or hub name.

        Raises:
            ModelError: it cannot be loaded.
        """
        return _once(self._policies, path, lambda: frozen_policy(path, self._settings(path), PLAIN))

    def tokenizer(self, path: str) -> Any:
        """Its tokenizer."""
        return _once(self._tokenizers, path, lambda: models.load_tokenizer(path, self._settings(path)))

    def language_model(self, path: str) -> ChatModel:
        """The language model of a folder or hub name.

        Raises:
            ModelError: it cannot be loaded.
        """
        from pipelines.engine.chat_model import ChatModel

        return _once(self._language_models, path, lambda: ChatModel(path, self._settings(path)))

    def reward_model(self, path: str, budget: int, field: str) -> RewardScorer:
        """The reward model of a folder or hub name.

        Args:
            budget: tokens of a pass, from now on.
            field: of the recipe, for messages.

        Raises:
            ModelError: it is none, or a damaged one.
        """
        from pipelines.engine.reward_model import RewardScorer

        scorer = _once(
            self._reward_models, path, lambda: RewardScorer(path, self._settings(path), budget=budget, field=field)
        )
        scorer.budget = budget
        return scorer

    def _settings(self, path: str) -> Model:
        return self.model.model_copy(update={"path": path, "revision": None, "fresh": None, "chat_template": None})


def _once(loaded: dict[str, Loaded], path: str, load: Callable[[], Loaded]) -> Loaded:
    """What was loaded from a path, or is now."""
    if path not in loaded:
        with LOADING:
            if path not in loaded:
                loaded[path] = load()
    return loaded[path]


class TextScorer:
    """A `Scorer` (pipelines/contract/scorer.py) over a policy and frozen models.

    Args:
        settings: the stage's section of the recipe.
        weights: the model that is trained, unsharded, whenever it is asked.
        tokenizer: the policy's.
        start: model folder that the run started from.
        frozen: shared by all scorers of a run.
        world: the processes that share the work, where all of them ask the same; alone where each asks for itself.
        budget: tokens of a pass, whenever it is asked.
        engine: where the model is trained.
    """

    def __init__(
        self,
        settings: Rlvr,
        weights: Callable[[], Any],
        *,
        tokenizer: Any,
        start: str,
        frozen: FrozenModels,
        world: parallel.World,
        budget: Callable[[], int],
        engine: InProcess | TinkerEngine,
    ) -> None:
        self.settings, self.weights, self.own_tokenizer, self.start = settings, weights, tokenizer, start
        self.frozen, self.world, self.budget, self.engine = frozen, world, budget, engine
        self.keeps_reference = settings.lora is not None or engine.remote
        """Whether the model that the run started from is there without a copy of its own."""
        self._policy: Policy | None = None

    def tokenizer(self, model: str = POLICY) -> Any:
        """The model's tokenizer."""
        return self.own_tokenizer if model in (POLICY, REFERENCE) else self.frozen.tokenizer(model)

    def language_model(self, path: str) -> ChatModel:
        """See `Scorer`; each process asks it by itself."""
        return self.frozen.language_model(path)

    def reward_model(self, path: str, field: str) -> RewardScorer:
        """See `Scorer`; each process scores what it asks itself."""
        return self.frozen.reward_model(path, self.budget(), field)

    def load(self, model: str) -> None:
        """See `Scorer`."""
        if model not in (POLICY, REFERENCE):
            self.frozen.policy(model)
        elif model == REFERENCE and not self.keeps_reference:
            self.frozen.policy(self.start)

    def mixture(self, reference: float) -> Sampler:
        """See `Scorer`."""
        from pipelines.rlvr.mixture import Mixture

        start = self.frozen.policy(self.start).causal
        dtype, rows = self.frozen.model.dtype, self.settings.decode_rows
        return Mixture(self.weights, start, reference, tokenizer=self.own_tokenizer, dtype=dtype, rows=rows)

    def earlier(self) -> EarlierPolicy:
        """See `Scorer`."""
        from pipelines.rlvr.earlier import Earlier

        return Earlier(
            self.weights, tokenizer=self.own_tokenizer, dtype=self.frozen.model.dtype, rows=self.settings.decode_rows
        )

    def log_probs(self, passages: Sequence[Passage], *, model: str = POLICY) -> list[Tensor]:
        """Log-probability in nats of each token, float32 [tokens]."""
        return [values[:, 0] for values in self.statistics(passages, LOG_PROB, model=model)]

    def statistics(
        self, passages: Sequence[Passage], statistics: TokenStatistics, *, model: str = POLICY
    ) -> list[Tensor]:
        """Statistics of each passage's tokens, float32 [tokens, width]; see `Scorer`.

        Raises:
            ValueError: a passage without context.
        """
        if any(not passage.context for passage in passages):
            raise ValueError("a passage needs at least one token of context")
        keys = [(tuple(passage.context), tuple(passage.text)) for passage in passages]
        distinct = sorted({(context + text, len(context)) for context, text in keys if text})
        own = distinct[self.world.rank :: self.world.size] if self.world.size > 1 else distinct
        with self._scoring(model) as policy, torch.no_grad():
            scored = self._of_sequences(own, statistics, policy)
        for part in self.world.gather(scored) if self.world.size > 1 else []:
            scored |= part
        none = torch.zeros(0, statistics.width)
        return [scored[context + text, len(context)] if text else none for context, text in keys]

    @contextlib.contextmanager
    def _scoring(self, model: str) -> Iterator[Policy]:
        """The model, ready to score."""
        if model not in (POLICY, REFERENCE):
            yield self.frozen.policy(model)
            return
        if model == REFERENCE and not self.keeps_reference:
            yield self.frozen.policy(self.start)
            return
        weights = self.weights()
        if self._policy is None or self._policy.model is not weights:
            self._policy = self.engine.policy(weights, PLAIN, dtype=self.frozen.model.dtype)
        was_training = weights.training
        weights.eval()
        try:
            with self._policy.reference() if model == REFERENCE else contextlib.nullcontext():
                yield self._policy
        finally:
            weights.train(was_training)

    def _of_sequences(
        self, sequences: list[tuple[tuple[int, ...], int]], statistics: TokenStatistics, policy: Policy
    ) -> dict[tuple[tuple[int, ...], int], Tensor]:
        """(tokens, length of the context) → statistics of the tokens after it."""
        limit = int(getattr(policy.config, "max_position_embeddings", 0) or 1 << 30)
        long = [sequence for sequence in sequences if len(sequence[0]) > limit]
        values_of = {(ids, start): torch.full((len(ids) - start, statistics.width), torch.nan) for ids, start in long}
        passes = ForwardPasses(policy, self.settings, parallel.World())
        passes.budget = self.budget()
        embeddings = policy.head.weight.detach()

        def score(layout: Layout, ids: Tensor) -> Tensor:
            if statistics is LOG_PROB:
                return policy.score(layout, ids)[0]
            return policy.of_logits(layout, ids, lambda logits, chosen: statistics.of(logits, chosen, embeddings))

        for chunk in _chunks([s for s in sequences if len(s[0]) <= limit], CHUNK_PASSES * passes.budget):
            width = max(len(ids) for ids, _ in chunk)
            tokens = padded([ids for ids, _ in chunk], width, 0, torch.int64)
            first = torch.tensor([start for _, start in chunk])[:, None]
            ends = torch.tensor([len(ids) for ids, _ in chunk])[:, None]
            place = torch.arange(width)
            mask = (place >= first) & (place < ends) & (tokens < FIRST_ID)
            values = passes.per_token(score, tokens, mask, values=statistics.width).view(*mask.shape, -1)
            values[(tokens >= FIRST_ID) & (place >= first)] = torch.nan  # images that an environment showed
            for (ids, start), row in zip(chunk, values, strict=True):
                values_of[ids, start] = row[start : len(ids)].clone()
        return values_of


def _chunks(
    sequences: Sequence[tuple[tuple[int, ...], int]], tokens: int
) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    """Sequences in order, in parts that have at most so many tokens when they are padded, or a single sequence."""
    part: list[tuple[tuple[int, ...], int]] = []
    width = 0
    for sequence in sequences:
        width = max(width, len(sequence[0]))
        if part and width * (len(part) + 1) > tokens:
            yield part
            part, width = [], len(sequence[0])
        part.append(sequence)
    if part:
        yield part
