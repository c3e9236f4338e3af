"""Mitigating Overthinking through Reasoning Shaping: Group Relative Segment Penalization.

arXiv 2510.09535. Presets: ares, grsp. Parts: segments (providers), grsp (shaping).

Where the segments of a row's reasoning begin: at words that turn a thought, or where the policy was least sure.

A penalty on many segments of reasoning, short ones above all, relative to the group.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.rlvr.common.scored_rows import scored_rows, texts_of, token_at, tokens_before
from pipelines.rlvr.ops import SAME, group_mean, group_std

KEYWORDS = (
    "wait", "but", "however", "alternatively", "hmm", "actually", "maybe", "perhaps", "let me", "so", "therefore", "then", "now",
    "next", "first", "second", "finally",
)  # fmt: skip


@method(
    paper="2510.09535",
    title="Mitigating Overthinking through Reasoning Shaping: segments by keywords or by confidence",
    checked="reconstructed (both ways are named in the paper; the keywords and the radius are ours)",
    makes=("segment",),
)
class segments(Provider):
    """Numbers the segments of each row's reasoning, from 0.

    `by: keywords`: a segment begins with the token that a keyword of the text begins in; the tokens before the first keyword are segment 0,
    so each segment from 1 on begins with a keyword. `by: confidence`: at a token less likely than the `radius` tokens before it and no more
    likely than the `radius` after it, which depends on no language. Tokens at both ends of a row have fewer neighbours; its first token
    begins segment 0. The reasoning ends where the text has `</tag>`; a row without it is reasoning as a whole.

    Args:
        keywords: whole words or phrases, in any case. Default: `KEYWORDS`, of English.
    """

    def __init__(
        self,
        *,
        by: Literal["keywords", "confidence"] = "keywords",
        keywords: Annotated[
            list[Annotated[str, Field(min_length=1, max_length=100)]], Field(min_length=1, max_length=1000)
        ]
        | None = None,
        radius: Annotated[int, Field(ge=1, le=10_000)] = 16,
        tag: Annotated[str, Field(min_length=1, max_length=50)] = "think",
    ) -> None:
        self.by, self.radius, self.end = by, radius, f"</{tag}>"
        words = "|".join(re.escape(word) for word in sorted(keywords or KEYWORDS, key=len, reverse=True))
        self.pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer: it has the tokenizer."""
        self.scorer = context.scorer

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`segment` [B, T]; -1 outside the reasoning and on tokens that are not trained."""
        tokenizer = self.scorer.tokenizer()
        known: dict[int, str] = {}
        segment = torch.full(tokens.shape, -1, dtype=torch.int64)
        for row in scored_rows(tokens, columns):
            places = columns["mask"][row.index].nonzero().squeeze(1)
            ids = [row.tokens[place] for place in places.tolist()]
            texts = texts_of(ids, tokenizer, known)
            before = tokens_before(texts, self.end)
            count = len(texts) if before is None else before
            if self.by == "keywords":
                begins = keyword_starts(texts[:count], self.pattern)
            else:
                begins = confidence_starts(columns["logp_old"][row.index, places[:count]].tolist(), self.radius)
            first = torch.zeros(count, dtype=torch.int64)
            first[begins] = 1
            segment[row.index, places[:count]] = first.cumsum(0)
        columns["segment"] = segment


def keyword_starts(texts: list[str], pattern: re.Pattern[str]) -> list[int]:
    """Indices of the tokens in which a keyword begins.

    >>> keyword_starts(["I", " wa", "it", ". but", " so"], re.compile("wait|but|so"))
    [1, 3, 4]
    """
    return sorted(set(token_at(texts, [match.start() for match in pattern.finditer("".join(texts))])))


def confidence_starts(logp: list[float], radius: int) -> list[int]:
    """Indices of local minima of the log-probability, the first token left out.

    >>> confidence_starts([-0.5, -0.1, -2.0, -0.1, -0.2, -0.2, 0.0], 2)
    [2]
    >>> confidence_starts([-0.5, -0.1, -2.0, -0.1, -0.2, -0.2, 0.0], 1)
    [2, 4]
    """
    return [
        place
        for place in range(1, len(logp))
        if all(logp[place] < before for before in logp[max(0, place - radius) : place])
        and all(logp[place] <= after for after in logp[place + 1 : place + 1 + radius])
    ]


@method(
    paper="2510.09535",
    title="Mitigating Overthinking through Reasoning Shaping: Group Relative Segment Penalization (GRSP)",
    checked="reconstructed (abstract and secondary notes; clusters, weights, strength and cap are ours)",
    couples="group",
)
class grsp(Method):
    """reward - clip(strength * sum_c w_c z_c, -cap, cap), z_c = (n_c - group mean) / group deviation of the row's counts n_c.

    n_c counts the row's segments whose length in tokens falls into cluster c; clusters go from short to long. A group whose counts
    in a cluster are all alike has z 0 there. Reconstructed; assumed are: three clusters at the terciles of the group's segment lengths;
    weights 4, 2, 1 (a longer segment costs less), divided by their sum; deviations with ddof 0; and the cap, below half of
    the difference between a correct answer and an incorrect one, so the penalty never reverses them. Segments come from
    `providers: [segments]`.

    Args:
        weights: one a cluster, short ones first.
        bounds: greatest lengths of all clusters but the last, in tokens, in order. Default: quantiles of the group's lengths.

    Raises:
        RecipeError: not one bound less than weights, bounds out of order, or weights without a sum above 0.
    """

    def __init__(
        self,
        *,
        strength: Annotated[float, Field(ge=0, le=100)] = 0.1,
        weights: Annotated[list[Annotated[float, Field(ge=0, le=1e6)]], Field(min_length=1, max_length=32)]
        | None = None,
        bounds: Annotated[list[Annotated[float, Field(gt=0)]], Field(max_length=31)] | None = None,
        cap: Annotated[float, Field(gt=0)] = 0.45,
    ) -> None:
        shares = torch.tensor([4.0, 2.0, 1.0] if weights is None else weights, dtype=torch.float64)
        if not shares.sum() > 0:
            raise RecipeError("rlvr.shaping.weights", "they add up to 0", "Give at least one above it.")
        if bounds is not None and (len(bounds) != len(shares) - 1 or bounds != sorted(bounds)):
            raise RecipeError("rlvr.shaping.bounds", f"give {len(shares) - 1} lengths in order, one less than weights.")
        self.strength, self.bounds, self.cap = strength, bounds, cap
        self.weights = shares / shares.sum()

    def __call__(self, reward: PerRow, group: PerRow, scored: PerRow, mask: PerToken, segment: PerToken) -> PerRow:
        """The shaped reward [B].

        >>> s = torch.tensor([[0, 1, 2, 3, 4, 4], [0, 0, 0, 0, 1, 1]]); r = torch.ones(2)
        >>> grsp(bounds=[1, 3])(r, r.long(), r.bool(), s >= 0, s).tolist()
        [0.957143, 1.042857]
        """
        lengths = segment_lengths(segment, mask & scored[:, None] & (segment >= 0))
        clusters = len(self.weights)
        if self.bounds is None:
            edges = _quantiles(lengths, group, clusters)
        else:
            edges = torch.tensor(self.bounds, dtype=torch.float64).expand(len(group), -1)
        cluster = (lengths[:, :, None] > edges[:, None, :]).sum(2)
        counts = torch.stack([((cluster == c) & (lengths > 0)).sum(1) for c in range(clusters)], 1)
        penalty = self.strength * weighted_z_scores(counts, group, scored, self.weights)
        return (reward - penalty.clamp(-self.cap, self.cap)).to(reward.dtype)


def segment_lengths(segment: Tensor, inside: Tensor) -> Tensor:
    """Tokens of each segment, int64 [B, segments]; 0 where a row has no such segment."""
    width = int(segment.max().clamp(min=0)) + 1
    empty = torch.zeros(len(segment), width, dtype=torch.int64)
    return empty.scatter_add(1, segment.clamp(min=0), inside.long())


def weighted_z_scores(counts: Tensor, group: Tensor, scored: Tensor, weights: Tensor) -> Tensor:
    """sum_c w_c z_c, float64 [B]; z_c with ddof 0, 0 where a group's counts are alike.

    Args:
        counts: [B, C] segments of each cluster.
        weights: float64 [C].
    """
    total = torch.zeros(len(counts), dtype=torch.float64)
    for cluster, weight in enumerate(weights.tolist()):
        count = counts[:, cluster]
        deviation = group_std(count, group, scored, ddof=0)
        centred = (count - group_mean(count, group, scored)) * scored
        total += weight * torch.where(deviation > SAME, centred / deviation.clamp(min=SAME), 0.0)
    return total


def _quantiles(lengths: Tensor, group: Tensor, clusters: int) -> Tensor:
    """Bounds between clusters of equal share, float64 [B, clusters - 1], over all segments of the row's group."""
    at = torch.arange(1, clusters, dtype=torch.float64) / clusters
    bounds = torch.zeros(len(group), clusters - 1, dtype=torch.float64)
    for number in group.unique().tolist():
        own = lengths[group == number]
        own = own[own > 0]
        if len(own):
            bounds[group == number] = torch.quantile(own.double(), at)
    return bounds
