"""Golden cases of distillation from a teacher with another vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.catalogue import bind
from pipelines.contract.sampling import Sampling
from pipelines.papers.gold import Aligned, aligned_groups, aligned_teacher_top
from pipelines.rlvr.common.scored_rows import Row


class Vocabulary:
    """A tokenizer that knows its tokens alone."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.chat_template, self.eos_token_id = None, names.index("</s>")

    def get_vocab(self) -> dict[str, int]:
        """Text → token."""
        return {name: token for token, name in enumerate(self.names)}


class Recorded:
    """A scorer of the rows of a case, each with the logits before its tokens."""

    def __init__(self, own: Vocabulary, other: Vocabulary, logits: list[Tensor]) -> None:
        self.vocabularies = {"policy": own, "other": other}
        self.logits = logits

    def load(self, path: str) -> None:
        """There is nothing to load."""

    def tokenizer(self, model: str = "policy") -> Vocabulary:
        """Either vocabulary."""
        return self.vocabularies[model]

    def statistics(self, passages: list[Any], asked: Any, *, model: str = "policy") -> list[Tensor]:
        """What is asked of the policy's logits of all rows, in order."""
        return [
            asked.of(logits, torch.tensor(passage.text), logits)
            for passage, logits in zip(passages, self.logits, strict=True)
        ]


class Read(aligned_teacher_top):
    """The provider, with answers that are read already."""

    def __init__(self, rows: list[Any], dtype: torch.dtype, **settings: Any) -> None:
        super().__init__(path="other", **settings)
        self.rows, self.dtype = rows, dtype

    def read(self, tokens: Tensor, columns: dict[str, Any], statistics: Any) -> list[tuple[Aligned, Tensor]]:
        """The case's rows."""
        answers = []
        for index, each in enumerate(self.rows):
            own, other = each["own"], each["other"]
            row = Row(index, [0, *own["token"]], 1, [(1, 1 + len(own["token"]))], index)
            logits = torch.tensor(other["logits"], dtype=self.dtype)
            groups = aligned_groups(own["end"], other["end"])
            answers.append(
                (Aligned(row, None, groups), statistics.of(logits, torch.tensor(other["token"]), logits))  # type: ignore[arg-type]
            )
        return answers


def aligned_divergence(case: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The mean over a row's groups, then over rows, and its derivative by the policy's logits [B, T, V]; through the provider."""
    rows = case["inputs"]["rows"]
    own, other = (Vocabulary(case["inputs"][f"{side}_vocabulary"]) for side in ("own", "other"))
    lengths = [len(each["own"]["token"]) for each in rows]
    logits = torch.zeros(len(rows), 1 + max(lengths), len(own.names), dtype=dtype)
    tokens = torch.zeros(logits.shape[:2], dtype=torch.int64)
    for index, each in enumerate(rows):
        logits[index, 1 : 1 + lengths[index]] = torch.tensor(each["own"]["logits"], dtype=dtype)
        tokens[index, 1 : 1 + lengths[index]] = torch.tensor(each["own"]["token"])
    place = torch.arange(tokens.shape[1])
    mask = (place > 0) & (place <= torch.tensor(lengths)[:, None])
    part = Read(rows, dtype, top=len(own.names), ranked=len(own.names), by_name=case["ours"]["by_name"])
    policy = SimpleNamespace(config=SimpleNamespace(vocab_size=len(own.names)), sampling=Sampling(temperature=1.0))
    scorer = Recorded(own, other, [logits[index, 1 : 1 + length] for index, length in enumerate(lengths)])
    part.setup(SimpleNamespace(policy=policy, scorer=scorer, problems={}))  # type: ignore[arg-type]
    columns: dict[str, Any] = {"mask": mask, "logp_old": torch.zeros(tokens.shape, dtype=dtype)}
    part.fill(tokens, columns)
    free = logits.clone().requires_grad_()
    logp = free.log_softmax(-1)
    columns |= {
        "logp": logp.gather(-1, tokens[..., None])[..., 0],
        "logp_top": logp.gather(-1, columns["teacher_top_id"]),
    }
    value = bind("rlvr.auxiliary_loss", case["ours"]["spec"])(columns)
    loss = (value.sum(1) / (columns["teacher_group"].amax(1) + 1)).mean()
    (gradient,) = torch.autograd.grad(loss, free)
    return {"loss": loss.detach(), "gradient": gradient[:, 1:]}
