"""Where the segments of a row's reasoning begin: at words that turn a thought, or where the policy was least sure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.rlvr.providers._rows import scored_rows, texts_of, token_at, tokens_before

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
