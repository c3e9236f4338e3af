"""Answers drawn from a geometric mixture of the policy and the model that the run started from, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipelines.contract.scorer import POLICY, REFERENCE, Passage, TokenStatistics
from pipelines.data import chat
from pipelines.data.records import Stop
from pipelines.engine import distribution
from pipelines.rlvr.common.answers import teacher_forced

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


def mixture_answers(requests: list[RolloutRequest], context: RolloutContext, *, reference: float) -> list[Trajectory]:
    """`request.rollouts` answers to each prompt, in order, as teacher-forced rows.

        log p(token) = reference log p_start(token) + (1 - reference) log p_policy(token) - log Z

    The mixture is normalised at each token, then sampled with the settings of the draw. No cache is kept between tokens, because the
    scoring hook is all that every engine offers: a draw of n tokens takes n passes over the texts so far, or 2 n of a true mixture.

    Args:
        reference: share of the starting model, from 0 to 1.
    """
    repeated = [request for request in requests for _ in range(request.rollouts)]
    streams = torch.tensor([context.streams.new(request.group) for request in repeated], dtype=torch.int64)
    points = distribution.stream_points(streams, torch.zeros_like(streams), context.sampling.max_tokens)
    prefixes = [[*request.prompt, *request.hint] for request in repeated]
    texts: list[list[int]] = [[] for _ in repeated]
    stops = [Stop.LENGTH for _ in repeated]
    ends, unfinished = chat.end_ids(context.tokenizer), list(range(len(repeated)))
    for place in range(context.sampling.max_tokens):
        logits = _next_logits([prefixes[n] + texts[n] for n in unfinished], context, reference)
        room = ~logits.isnan().any(1)
        unfinished = [n for n, fits in zip(unfinished, room.tolist(), strict=True) if fits]
        if not unfinished:
            break
        tokens, _ = distribution.pick(logits[room], context.sampling, points[unfinished, place, None])
        for n, token in zip(unfinished, tokens.tolist(), strict=True):
            texts[n].append(token)
        for n in unfinished:
            stops[n] = Stop.END if texts[n][-1] in ends else Stop.LENGTH
        unfinished = [n for n in unfinished if stops[n] != Stop.END]
    rows = []
    for request, prefix, text, stop in zip(repeated, prefixes, texts, stops, strict=True):
        row = teacher_forced(request, prefix, text, stop if text else Stop.ERROR, context)
        row.text = context.decode([*request.hint, *text])
        rows.append(row)
    return rows


def _next_logits(prefixes: Sequence[Sequence[int]], context: RolloutContext, reference: float) -> Tensor:
    """Logits [N, V] of the mixture after each prefix, V the tokenizer's tokens; NaN where the context is full."""
    width = len(context.tokenizer)
    asked = TokenStatistics(width, lambda logits, ids, embeddings: logits[:, :width].float())
    passages = [Passage(prefix, [context.tokenizer.eos_token_id]) for prefix in prefixes]
    mixed = torch.zeros(len(passages), width)
    for model, share in ((REFERENCE, reference), (POLICY, 1 - reference)):
        if share and passages:
            mixed += share * torch.cat(context.scorer.statistics(passages, asked, model=model))
    return mixed
