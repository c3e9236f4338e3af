"""General Online Logit Distillation (GOLD): a teacher with another vocabulary.

Hugging Face, "Unlocking On-Policy Distillation for Any Model Family". Presets: gold, gold_sampled. Parts: aligned_teacher (providers),
aligned_teacher_top (providers), aligned_divergence (auxiliary_loss).

The policy's answer is read by a teacher in the teacher's own tokens; what lies between two boundaries that both splits of the text have is
as likely as all of its tokens together. What stands at the end of such a group is compared as a whole distribution: tokens that both
vocabularies have by their names, the others by their rank, as in Universal Logit Distillation (2402.12030).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, PerTokenTop, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.sampling import Sampling
from pipelines.contract.scorer import Passage, TokenStatistics
from pipelines.data import chat, control
from pipelines.data.records import common_length
from pipelines.engine import distribution
from pipelines.rlvr.common.scored_rows import Row, scored_rows, texts_of

PAPER = "https://huggingface.co/spaces/HuggingFaceH4/on-policy-distillation"
TITLE = "Unlocking On-Policy Distillation for Any Model Family (GOLD)"
LEAST = math.log(1e-8)
"""Log-probability below which none is told from another, as in TRL."""
NEVER = -1e4
"""Log-probability of what the teacher cannot say."""
ALIGNED = "a teacher of another vocabulary"
HINT = "Add one: providers: [{kind: aligned_teacher_top, path: ./FOLDER}]."
COLUMNS = {
    "teacher_group": Column(
        "B T", "int64", Phase.ADVANTAGE, ALIGNED,
        "Number of the token's group in its row, which lies between two boundaries that both splits of the text have; -1: of no group.",
        fill=-1, part=True, hint=HINT, span=(0, 4),
    ),
    "shared_names": Column(
        "B", "int64", Phase.ADVANTAGE, ALIGNED,
        "How many of `teacher_top_id` are tokens of both vocabularies; the others are the policy's alone, beside as many of the teacher's.",
        part=True, hint=HINT, span=(1, 3),
    ),
    "shared_vocabulary": Column(
        "B", "float32", Phase.ADVANTAGE, ALIGNED, "Share of the teacher's vocabulary that the policy's has too.", part=True, hint=HINT,
    ),
}  # fmt: skip

Groups = list[tuple[range, range]]


@dataclass(frozen=True)
class Aligned:
    """An answer as the teacher reads it."""

    row: Row
    passage: Passage
    """In the teacher's tokens, after its own rendering of the prompt."""
    groups: Groups
    """Places in the answer's own tokens, and in the passage's text."""


class AlignedTeacher(Provider):
    """A frozen teacher that reads answers in tokens of its own."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        self.share = 0.0

    def setup(self, context: ProviderContext) -> None:
        """Load the teacher."""
        self.policy = context.policy
        self.scorer, self.problems = context.scorer, context.problems
        self.scorer.load(self.path)
        self.own, self.other = self.scorer.tokenizer(), self.scorer.tokenizer(self.path)
        self.known: tuple[dict[int, str], dict[int, str]] = ({}, {})

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Share of the step's answers that were distilled."""
        return {"aligned_teacher/aligned": self.share}

    def read(
        self, tokens: Tensor, columns: dict[str, Any], statistics: TokenStatistics
    ) -> list[tuple[Aligned, Tensor]]:
        """The answers that both splits write alike, with what is asked of the teacher at each of its tokens."""
        rows = [row for row in scored_rows(tokens, columns) if len(row.turns) == 1]
        texts = control.decode(self.own, [row.tokens[row.first :] for row in rows]) if rows else []
        prompts = chat.render_prompts(self.other, [self.problems[row.problem].prompt for row in rows]) if rows else []
        ends = [chat.end_ids(self.own), chat.end_ids(self.other)]
        answers = []
        for row, text, prompt in zip(rows, texts, prompts, strict=True):
            answer = row.tokens[row.first :]
            read = control.encode_text(self.other, text)
            own_ends, other_ends = (
                token_ends(ids, tokenizer, text, known)
                for ids, tokenizer, known in zip((answer, read), (self.own, self.other), self.known, strict=True)
            )
            if control.decode_text(self.other, read) == text:
                if answer[-1] in ends[0]:
                    read, other_ends = [*read, ends[1][0]], [*other_ends, len(text)]
                answers.append(Aligned(row, Passage(prompt, read), aligned_groups(own_ends, other_ends)))
        scored = self.scorer.statistics([each.passage for each in answers], statistics, model=self.path)
        read_all = [(each, values) for each, values in zip(answers, scored, strict=True) if not values.isnan().any()]
        self.share = len(read_all) / max(1, len(rows))
        return read_all


@method(
    paper=PAPER,
    title=f"{TITLE}: a teacher with another vocabulary, of the sampled tokens",
    checked="third-party code (trl: the alignment, 4 cases; the divergence is that of the sampled tokens)",
    makes=("logp_teacher",),
)
class aligned_teacher(AlignedTeacher):
    """`logp_teacher` under a frozen teacher of any vocabulary, for `distillation`.

    The answer's text is split by the teacher's tokenizer after the teacher's own rendering of the problem's prompt. Between two
    boundaries that both splits share, the difference of the teacher's log-probability and the sampler's is dealt to the policy's tokens in
    equal parts. So the sum over an answer is log p_teacher(text) - log p_policy(tokens), and with one vocabulary it is `teacher` at
    temperature 1. An answer that is longer than the teacher's context, has several turns, or does not come back from the teacher's
    tokens as it was, has the sampler's values: it is not distilled.

    Take it where the vocabularies have little in common, or where memory is short: it needs one value a token. `aligned_teacher_top` says
    more about each token.
    """

    model_paths: ClassVar[tuple[str, ...]] = ("path",)

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_teacher` [B, T]."""
        values = columns["logp_old"].clone()
        asked = TokenStatistics(1, lambda logits, ids, _: logits.float().log_softmax(-1).gather(-1, ids[:, None]))
        for each, logp in self.read(tokens, columns, asked):
            index, first = each.row.index, each.row.first
            for own, other in each.groups:
                places = slice(first + own.start, first + own.stop)
                gap = logp[other.start : other.stop].double().sum() - values[index, places].double().sum()
                values[index, places] += (gap / len(own)).to(values)
        columns["logp_teacher"] = torch.where(columns["mask"], values, columns["logp_old"])


@method(
    paper=PAPER,
    title=f"{TITLE}: the distributions of a teacher with another vocabulary",
    checked="third-party code (trl, with aligned_divergence, 7 cases)",
    makes=("teacher_top_id", "logp_teacher_top", "teacher_group", "shared_names", "shared_vocabulary"),
)
class aligned_teacher_top(AlignedTeacher):
    """What a frozen teacher of any vocabulary finds probable at the end of each group of tokens, for `aligned_divergence`.

    Answers are read and grouped as by `aligned_teacher`. Of a group of several tokens the distribution of the last one counts, times the
    probability of those in front of it (TRL's merging "bayesian"; its default, "observed", reads each distribution one token late).

        top       tokens that both vocabularies have, kept by the teacher's probability
        ranked    tokens of one vocabulary alone, kept by each model's own probability and compared by rank

    Tokens are the same where both vocabularies write them alike, and both ends of a turn are. `by_name: false` compares all by rank alone,
    Universal Logit Distillation. Distributions are those at the sampling temperature. With both numbers at the vocabulary's size it is
    TRL's form; smaller ones leave the tail out, which is sound for `beta` strictly between 0 and 1, where each token's term is least at
    the teacher's probability. `ranked` above 0 costs a pass of the policy. Each token of the rows takes 12 bytes times `top` + `ranked`.
    """

    model_paths: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        path: str,
        top: Annotated[int, Field(ge=0, le=1 << 20)] = 64,
        ranked: Annotated[int, Field(ge=0, le=1 << 20)] = 16,
        by_name: bool = True,
    ) -> None:
        super().__init__(path=path)
        if (top == 0 or not by_name) and ranked == 0:
            raise RecipeError(
                "rlvr.providers", "aligned_teacher_top keeps no token", "Raise top, or ranked where by_name is false."
            )
        self.top, self.ranked, self.by_name = top, ranked, by_name
        self.asks_policy = ranked > 0

    def setup(self, context: ProviderContext) -> None:
        """Load the teacher and compare the vocabularies."""
        super().setup(context)
        width = context.policy.config.vocab_size
        pairs = alike(self.own, self.other) if self.by_name else {}
        self.of_teacher = torch.tensor(sorted(pairs), dtype=torch.int64)
        self.of_policy = torch.tensor([pairs[token] for token in sorted(pairs)], dtype=torch.int64)
        self.only = torch.ones(width, dtype=torch.bool)
        """Tokens that the policy alone has."""
        self.only[self.of_policy] = False
        self.names = min(self.top, len(pairs))
        self.ranks = min(self.ranked, int(self.only.sum()))

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`teacher_top_id` and `logp_teacher_top` [B, T, V], `teacher_group` [B, T], `shared_names` and `shared_vocabulary` [B]."""
        shape = (*tokens.shape, self.names + self.ranks)
        ids, logp = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=columns["logp_old"].dtype)
        group = torch.full(tokens.shape, -1)
        self.width = len(self.of_teacher)
        answers = self.read(tokens, columns, TokenStatistics(1 + 2 * self.names + self.ranks, self._of_teacher))
        own_ids = self._ranked([each.row for each, _ in answers])
        for (each, values), ranked in zip(answers, own_ids, strict=True):
            index, first = each.row.index, each.row.first
            chosen, kept, names, others = values.split([1, self.names, self.names, self.ranks], 1)
            for number, (own, other) in enumerate(each.groups):
                group[index, first + own.start : first + own.stop] = number
                before = chosen[other.start : other.stop - 1].clamp(min=LEAST).sum()
                place, of_teacher = own.stop - 1, other.stop - 1
                ids[index, first + place] = torch.cat([names[of_teacher].long(), ranked[place]])
                logp[index, first + place] = torch.cat([kept[of_teacher], others[of_teacher]]) + before
        rows = tokens.shape[:1]
        columns |= {"teacher_top_id": ids, "logp_teacher_top": logp}
        columns["teacher_group"] = group.masked_fill(~columns["mask"], -1)
        columns["shared_names"] = torch.full(rows, self.names)
        columns["shared_vocabulary"] = torch.full(rows, len(self.of_teacher) / max(1, self.width), dtype=logp.dtype)

    def _of_teacher(self, logits: Tensor, ids: Tensor, _: Tensor) -> Tensor:
        """Of each token its log-probability, those of the shared ones that are kept, their ids for the policy, and the ranked others."""
        self.width = logits.shape[-1]
        logp = distribution.warp(logits, Sampling(temperature=self.policy.sampling.temperature)).log_softmax(-1)
        shared = self.of_teacher.to(logits.device)
        kept, place = logp[:, shared].topk(self.names)
        others = logp.index_fill(-1, shared, NEVER).topk(min(self.ranks, self.width)).values
        others = torch.nn.functional.pad(others, (0, self.ranks - others.shape[1]), value=NEVER)
        names = self.of_policy.to(logits.device)[place].float()
        return torch.cat([logp.gather(-1, ids[:, None]), kept, names, others.clamp(min=NEVER)], -1)

    def _ranked(self, rows: Sequence[Row]) -> list[Tensor]:
        """Ids of the tokens that the policy alone has, int64 [tokens, ranks] of each row's answer, by its own probability."""
        if not self.ranks:
            return [torch.zeros(len(row.tokens) - row.first, 0, dtype=torch.int64) for row in rows]

        def best(logits: Tensor, ids: Tensor, _: Tensor) -> Tensor:
            return logits.masked_fill(~self.only.to(logits.device), -torch.inf).topk(self.ranks).indices.float()

        passages = [Passage(row.tokens[: row.first], row.tokens[row.first :]) for row in rows]
        return [ids.long() for ids in self.scorer.statistics(passages, TokenStatistics(self.ranks, best))]


@method(
    paper=PAPER,
    title=f"{TITLE}: the divergence from a teacher with another vocabulary",
    checked="third-party code (trl), 7 cases",
    couples="row",
    provenance=("model",),
)
def aligned_divergence(
    logp: PerToken,
    logp_top: PerTokenTop,
    logp_teacher_top: PerTokenTop,
    teacher_group: PerToken,
    shared_names: PerRow,
    shared_vocabulary: PerRow,
    mask: PerToken,
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5,
    named: Annotated[float, Field(ge=0)] | None = None,
    ranked: Annotated[float, Field(ge=0)] | None = None,
) -> PerToken:
    """named * JSD_beta of the tokens of both vocabularies + ranked * sum |p - q| of the others by rank; 0 but at the end of each group.

    With p of the teacher and q of the policy, each times the probability of the group's tokens before:

        JSD_b = sum of b p (log p - log m) + (1 - b) q (log q - log m),   m = b p + (1 - b) q
        JSD_0 = sum of p log(p / q),   JSD_1 = sum of q log(q / p)

    Without `named` and `ranked` the weights are the share of the teacher's vocabulary that the policy has too, and 1 minus that. TRL's loss
    is the mean over groups of a row, then over rows; here the recipe's `loss_aggregation` counts every token.

    >>> q, p = torch.tensor([[[0.5, 0.125, 0.375]]]).log(), torch.tensor([[[0.25, 0.5, 0.125]]]).log()
    >>> row = (torch.zeros(1, 1), q, p, torch.zeros(1, 1).long(), torch.tensor([1]), torch.tensor([0.5]), torch.ones(1, 1).bool())
    >>> round(float(aligned_divergence(*row, beta=0.0)), 4)  # 0.5 * 0.25 ln 0.5 + 0.5 * (|0.375 - 0.5| + |0.125 - 0.125|)
    -0.0241
    """
    inside = (teacher_group >= 0) & mask
    width = logp.shape[1]
    group = torch.where(inside, teacher_group.clamp(0, width - 1), width)  # [B, T]
    place = torch.arange(width, device=logp.device).expand_as(group)
    of_group = logp.new_zeros(len(logp), width + 1).scatter_add(
        1, group, torch.where(inside, logp.clamp(min=LEAST), 0.0)
    )
    last = group.new_full((len(logp), width + 1), -1).scatter_reduce(1, group, place, "amax")
    ends = inside & (last.gather(1, group) == place)
    before = torch.where(ends, of_group.gather(1, group) - logp.clamp(min=LEAST), 0.0)
    policy = torch.where(ends[..., None], logp_top + before[..., None], logp_teacher_top)
    names = torch.arange(policy.shape[-1], device=logp.device) < shared_names[:, None, None]  # [B, 1, V]
    by_name = torch.where(names, _jsd(policy.clamp(min=LEAST), logp_teacher_top.clamp(min=LEAST), beta), 0.0).sum(-1)
    sides = (
        torch.where(names, 0.0, side.exp()).sort(-1, descending=True).values for side in (policy, logp_teacher_top)
    )
    by_rank = torch.stack(list(sides)).diff(dim=0)[0].abs().sum(-1)
    weights = (shared_vocabulary if named is None else named, 1 - shared_vocabulary if ranked is None else ranked)
    first, second = (weight[:, None] if isinstance(weight, Tensor) else weight for weight in weights)
    return torch.where(ends, first * by_name + second * by_rank, 0.0)


def _jsd(policy: PerTokenTop, teacher: PerTokenTop, beta: float) -> PerTokenTop:
    """Terms of the generalised Jensen-Shannon divergence, of log-probabilities."""
    if beta == 0:
        return teacher.exp() * (teacher - policy)
    if beta == 1:
        return policy.exp() * (policy - teacher)
    mean = torch.logaddexp(teacher + math.log(beta), policy + math.log1p(-beta))
    return beta * teacher.exp() * (teacher - mean) + (1 - beta) * policy.exp() * (policy - mean)


def alike(own: Any, other: Any) -> dict[int, int]:
    """The other vocabulary's token → the one of this vocabulary that is written alike; ends of turns are alike whatever they are called."""
    names = own.get_vocab()
    pairs = {token: names[name] for name, token in other.get_vocab().items() if name in names}
    taken = set(pairs.values())
    for end, other_end in zip(chat.end_ids(own)[:1], chat.end_ids(other)[:1], strict=False):
        if other_end not in pairs and end not in taken:
            pairs[other_end] = end
    return pairs


def token_ends(ids: Sequence[int], tokenizer: Any, text: str, known: dict[int, str]) -> list[int]:
    """How many characters of the text each token and those before it have written for certain.

    Args:
        known: token → its text by itself; what is not there yet is added.
    """
    pieces = texts_of(list(ids), tokenizer, known)
    if "".join(pieces) == text:
        return list(accumulate(map(len, pieces)))
    prefixes = control.decode(tokenizer, [list(ids[: place + 1]) for place in range(len(ids))])
    return [common_length([list(map(ord, text)), list(map(ord, prefix))]) for prefix in prefixes]


def aligned_groups(own: Sequence[int], other: Sequence[int]) -> Groups:
    """The tokens of both splits between one shared boundary and the next; what has no partner is left out.

    Args:
        own, other: of each token the character at which it ends, never falling.

    >>> aligned_groups([2, 3, 6], [1, 3, 4, 6])
    [(range(0, 2), range(0, 2)), (range(2, 3), range(2, 4))]
    """
    groups: Groups = []
    starts, places = [0, 0], [0, 0]
    while places[0] < len(own) and places[1] < len(other):
        end, other_end = own[places[0]], other[places[1]]
        places[0] += end <= other_end
        places[1] += other_end <= end
        if end == other_end:
            groups.append((range(starts[0], places[0]), range(starts[1], places[1])))
            starts = list(places)
    if starts[0] < len(own) and starts[1] < len(other):
        groups.append((range(starts[0], len(own)), range(starts[1], len(other))))
    return groups
