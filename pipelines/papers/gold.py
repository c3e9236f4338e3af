"""General Online Logit Distillation (GOLD): a teacher with another vocabulary.

Hugging Face, "Unlocking On-Policy Distillation for Any Model Family". Presets: gold. Parts: aligned_teacher (providers).

The policy's answer is read by a teacher in the teacher's own tokens; what lies between two boundaries that both splits of the text have is
as likely as all of its tokens together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage
from pipelines.data import chat, control
from pipelines.data.records import common_length
from pipelines.rlvr.common.scored_rows import scored_rows, texts_of

Groups = list[tuple[range, range]]


@method(
    paper="https://huggingface.co/spaces/HuggingFaceH4/on-policy-distillation",
    title="Unlocking On-Policy Distillation for Any Model Family (GOLD): a teacher with another vocabulary",
    checked="third-party code (trl: the alignment, 4 cases; the divergence is that of the sampled tokens)",
    makes=("logp_teacher",),
)
class aligned_teacher(Provider):
    """`logp_teacher` under a frozen teacher of any vocabulary, for `distillation`.

    The answer's text is split by the teacher's tokenizer after the teacher's own rendering of the problem's prompt. Between two
    boundaries that both splits share, the difference of the teacher's log-probability and the sampler's is dealt to the policy's tokens in
    equal parts. So the sum over an answer is log p_teacher(text) - log p_policy(tokens), and with one vocabulary it is `teacher` at
    temperature 1. An answer that is longer than the teacher's context, has several turns, or does not come back from the teacher's
    tokens as it was, has the sampler's values: it is not distilled.

    Take it where the teacher that you want is of another family; of the same one `teacher`, or `gkd` over its distribution, says more
    about each token. TRL's trainer compares whole distributions, of tokens that both vocabularies have by the generalised JSD and of others
    by sorted probabilities; that is left out.
    """

    model_paths: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(self, *, path: str) -> None:
        self.path = path

    def setup(self, context: ProviderContext) -> None:
        """Load the teacher."""
        self.scorer, self.problems = context.scorer, context.problems
        self.scorer.load(self.path)
        self.own, self.other = self.scorer.tokenizer(), self.scorer.tokenizer(self.path)
        self.known: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self.aligned = 0.0

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_teacher` [B, T]."""
        rows = [row for row in scored_rows(tokens, columns) if len(row.turns) == 1]
        texts = control.decode(self.own, [row.tokens[row.first :] for row in rows]) if rows else []
        prompts = chat.render_prompts(self.other, [self.problems[row.problem].prompt for row in rows]) if rows else []
        ends = [chat.end_ids(self.own), chat.end_ids(self.other)]
        passages, groups_of = [], []
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
                passages.append(Passage(prompt, read))
                groups_of.append((row, aligned_groups(own_ends, other_ends)))
        values = columns["logp_old"].clone()
        scored = self.scorer.log_probs(passages, model=self.path)
        told = 0
        for (row, groups), logp in zip(groups_of, scored, strict=True):
            if logp.isnan().any():
                continue
            told += 1
            for own, other in groups:
                places = slice(row.first + own.start, row.first + own.stop)
                gap = logp[other.start : other.stop].double().sum() - values[row.index, places].double().sum()
                values[row.index, places] += (gap / len(own)).to(values)
        self.aligned = told / max(1, len(rows))
        columns["logp_teacher"] = torch.where(columns["mask"], values, columns["logp_old"])

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Share of the step's answers that were distilled."""
        return {"aligned_teacher/aligned": self.aligned}


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
