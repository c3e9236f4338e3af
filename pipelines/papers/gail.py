"""Lipschitzness Is All You Need To Tame Off-policy Generative Adversarial Imitation Learning.

arXiv 2006.16785. Presets: gail. Parts: demonstration_discriminator (providers), gail (shaping).

A discriminator that tells the policy's answers from the records' demonstrations, and is kept smooth by a gradient penalty.

Rows are paid by how much a discriminator takes them for demonstrations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, Phase
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.data import control
from pipelines.engine import distribution
from pipelines.engine.policy import Policy
from pipelines.rlvr.common.scored_rows import read_at, scored_rows
from pipelines.rlvr.ops import demonstrations
from pipelines.rlvr.pack import padded
from pipelines.rlvr.passes import ForwardPasses

COLUMNS = {
    "demonstration_logit": Column(
        "B",
        "float32",
        Phase.ADVANTAGE,
        "a discriminator",
        "Log-odds that it takes the row for a demonstration; 0 of a row that it does not judge.",
        part=True,
        hint="Train a discriminator: providers: [demonstration_discriminator].",
        span=(-2.0, 2.0),
    ),
}

MIXES = 7
"""RNG stream id of smoothed labels, and of the places between answers and demonstrations where the gradient is penalised."""
WIDTH, LEAK, HEAD_GAIN = 100, 0.1, 0.01
LABELS = (0.7, 1.2)
"""Between what the label of a demonstration is drawn."""
ENTROPY_WEIGHT = 0.001


def _summary(hidden: Tensor) -> list[float]:
    """Mean and last of the hidden states at an answer's tokens."""
    return [*hidden.mean(0).tolist(), *hidden[-1].tolist()]


SUMMARY = HiddenStatistics("last", _summary)


def _single_answers(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """Rows are single answers."""
    rollout = bound["rollout"]
    if "turn_reward" in rollout.card.makes:
        raise RecipeError(
            part.slot,
            f"{part.name} reads single answers, and rollout: {rollout.name} plays episodes",
            "Use rollout: single_turn, or leave the provider out.",
        )


@method(
    paper="2006.16785",
    title="Lipschitzness Is All You Need To Tame Off-policy Generative Adversarial Imitation Learning (the discriminator)",
    checked="official code (read; what it reads of a text is ours)",
    makes=("demonstration_logit",),
    check=_single_answers,
)
class demonstration_discriminator(Provider):
    """D, the log-odds that a prompt with its answer is the record's demonstration (`solution`, or its answer) and not the policy's:

        loss = mean BCE(D(policy's), 0) + mean BCE(D(demonstration), u) - 0.001 H + penalty mean max(|dD/dx| - bound, 0)^2

    with labels u from 0.7 to 1.2 and H the mean entropy of D's verdicts. The gradient is taken at a random place between an answer and its
    own prompt's demonstration; that it stays below `bound` is what the paper finds indispensable. `one_sided: false` penalises smaller
    gradients too. x is the frozen starting policy's representation of an answer, the mean of its last hidden states and the one at the last
    token, and D a network of two layers of 100 over it, as in the released code: D is smooth in x, not in the text. After a step's rewards
    are computed it learns for `epochs` steps, each from as many rows, sampled from them and the `memory` newest of earlier steps. No
    verdict is read. Rows that are demonstrations themselves, and those whose problem is not in the split, are not scored.
    """

    reads_network = True

    def __init__(
        self,
        *,
        learning_rate: Annotated[float, Field(gt=0)] = 5e-4,
        epochs: Annotated[int, Field(ge=1)] = 1,
        penalty: Annotated[float, Field(ge=0)] = 10.0,
        bound: Annotated[float, Field(ge=0)] = 1.0,
        one_sided: bool = True,
        spectral_norm: bool = True,
        memory: Annotated[int, Field(ge=0, le=10_000_000)] = 1024,
    ) -> None:
        self.learning_rate, self.epochs, self.memory = learning_rate, epochs, memory
        self.penalty, self.bound, self.one_sided, self.spectral_norm = penalty, bound, one_sided, spectral_norm

    def setup(self, context: ProviderContext) -> None:
        """Copy the policy, which stays as it is, and make the network.

        Raises:
            RecipeError: a record has no demonstration.
        """
        self.seed, self.tokenizer = context.seed, context.scorer.tokenizer()
        self.texts = {
            number: str(problem.info.get("solution") or problem.answer) for number, problem in context.problems.items()
        }
        for number, problem in context.problems.items():
            if not self.texts[number].strip():
                raise RecipeError(
                    "rlvr.providers",
                    f"demonstration_discriminator compares answers with the records' solutions, and record {problem.uid} has neither a "
                    "solution nor an answer",
                    "Give records with solutions or answers.",
                )
        policy = context.policy
        frozen = Policy(
            copy.deepcopy(policy.model).requires_grad_(False), context.rlvr.sampling, dtype=context.model.dtype
        )
        self.passes = ForwardPasses(frozen, context.rlvr, context.passes.world)
        torch.manual_seed(context.seed)
        inputs = 2 * policy.head.in_features
        self.network = network(inputs, self.spectral_norm)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)
        self.judged = torch.zeros(0, 2, inputs)
        """What is read of each row of the step, and of its demonstration."""
        self.earlier = torch.zeros(0, 2, inputs)
        """The same of rows of earlier steps, the newest last."""

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`demonstration_logit` [B]."""
        own = columns["mask"] & ~demonstrations(columns["mask"], columns["teacher_forced"])[:, None]
        rows = [row for row in scored_rows(tokens, columns | {"mask": own}) if row.problem in self.texts]
        columns["demonstration_logit"] = torch.zeros(len(tokens))
        self.judged = self.judged[:0]
        if not rows:
            return
        positions = torch.tensor([row.index for row in rows])
        answers = self.passes.hidden_statistics(*read_at(tokens[positions], own[positions]), SUMMARY)
        asked = {(row.problem, tuple(row.tokens[: row.first])): 0 for row in rows}
        shown = self._demonstrations(list(asked))
        index = {key: number for number, key in enumerate(asked)}
        paired = [index[row.problem, tuple(row.tokens[: row.first])] for row in rows]
        self.judged = torch.stack([answers, shown[paired]], 1)
        with torch.no_grad():
            columns["demonstration_logit"][positions] = self.network.eval()(answers).squeeze(1)

    def _demonstrations(self, asked: list[tuple[int, tuple[int, ...]]]) -> Tensor:
        """What is read of each problem's demonstration after a prompt, float32 [N, 2 * hidden]."""
        end = int(self.tokenizer.eos_token_id)
        solutions = [[*control.encode_text(self.tokenizer, self.texts[n]), end] for n, _ in asked]
        rows = [[*prompt, *solution] for (_, prompt), solution in zip(asked, solutions, strict=True)]
        width = max(map(len, rows))
        position = torch.arange(width)
        start = torch.tensor([len(prompt) for _, prompt in asked])[:, None]
        mask = (position >= start) & (position < torch.tensor([len(row) for row in rows])[:, None])
        return self.passes.hidden_statistics(*read_at(padded(rows, width, 0, torch.int64), mask), SUMMARY)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Learn from the answers that `fill` has judged, earlier ones and the demonstrations of both."""
        count = len(self.judged)
        if not count:
            return {}
        draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), MIXES)
        pool = torch.cat([self.earlier, self.judged])
        self.earlier = pool[max(0, len(pool) - self.memory) :]
        self.network.train()
        metrics: dict[str, float] = {}
        for _ in range(self.epochs):
            answers, demonstrated = pool[torch.randperm(len(pool), generator=draw)[:count]].unbind(1)
            labels = LABELS[0] + (LABELS[1] - LABELS[0]) * torch.rand(count, generator=draw)
            share = torch.rand(count, 1, generator=draw)
            fit = fit_loss(self.network, answers, demonstrated, labels)
            norms = gradient_norms(self.network, share * answers + (1 - share) * demonstrated)
            excess = norms - self.bound
            rough = (excess.clamp(min=0) if self.one_sided else excess).square().mean()
            self.optimizer.zero_grad(set_to_none=True)
            (fit + self.penalty * rough).backward()
            self.optimizer.step()
            metrics = {
                "discriminator/loss": float(fit.detach()),
                "discriminator/penalty": float(rough.detach()),
                "discriminator/gradient_norm": float(norms.detach().mean()),
            }
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer of the network, and earlier rows; what it reads is the starting policy's."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "earlier": self.earlier.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.earlier = state["earlier"]


def network(inputs: int, spectral: bool) -> torch.nn.Sequential:
    """The discriminator over `inputs` numbers; its first log-odds are near 0.

    Args:
        spectral: divide the weights of both layers by their largest singular value.
    """
    body = [torch.nn.Linear(inputs, WIDTH), torch.nn.Linear(WIDTH, WIDTH)]
    head = torch.nn.Linear(WIDTH, 1)
    for layer in (*body, head):
        torch.nn.init.orthogonal_(layer.weight, HEAD_GAIN if layer is head else math.sqrt(2 / (1 + LEAK**2)))
        torch.nn.init.zeros_(layer.bias)
    first, second = (torch.nn.utils.parametrizations.spectral_norm(layer) if spectral else layer for layer in body)
    return torch.nn.Sequential(first, torch.nn.LeakyReLU(LEAK), second, torch.nn.LeakyReLU(LEAK), head)


def fit_loss(network: torch.nn.Module, answers: Tensor, demonstrated: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of both kinds less the entropy term, a scalar.

    Args:
        answers: float [N, inputs].
        demonstrated: float [N, inputs].
        labels: float [N], of the demonstrations.
    """
    own, expert = network(answers).squeeze(1), network(demonstrated).squeeze(1)
    verdicts = torch.cat([own, expert])
    entropy = binary_cross_entropy_with_logits(verdicts, verdicts.sigmoid())
    fit = binary_cross_entropy_with_logits(own, torch.zeros_like(own)) + binary_cross_entropy_with_logits(
        expert, labels
    )
    return fit - ENTROPY_WEIGHT * entropy


def gradient_norms(network: torch.nn.Module, places: Tensor) -> Tensor:
    """Length of the network's gradient by its input at each place [N, inputs], float [N], itself with gradient."""
    places = places.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(network(places).sum(), places, create_graph=True)
    return gradient.norm(dim=1)


FLOOR = 1e-8
"""Added to a probability before its logarithm, as in the released code: the most that is paid is 18.4."""


@method(
    paper="2006.16785",
    title="Lipschitzness Is All You Need To Tame Off-policy Generative Adversarial Imitation Learning (the reward)",
    checked="official code (read)",
    couples="row",
    provenance=("demonstrations",),
)
def gail(
    reward: PerRow,
    demonstration_logit: PerRow,
    *,
    form: Literal["minimax", "log_odds"] = "minimax",
    weight: Annotated[float, Field(ge=0)] = 1.0,
    verifier_weight: Annotated[float, Field(ge=0)] = 0.0,
) -> PerRow:
    """weight r + verifier_weight R, with D the discriminator's log-odds that the row is a demonstration:

        minimax:   r = -log(1 - sigmoid(D))                  from 0 up: what looks like the policy's own is paid nothing
        log_odds:  r = -log(1 - sigmoid(D)) + log sigmoid(D)  about D itself, of both signs (AIRL)

    Without a `verifier_weight` the verifier does not affect the reward: its `correct` only measures the imitation.

    >>> import torch
    >>> D = torch.tensor([0.0, 2.0, -2.0, 90.0])
    >>> gail(D * 0, D).tolist(), gail(D * 0 + 1, D, weight=0.5, form="log_odds", verifier_weight=1.0).tolist()
    ([0.693147, 2.126928, 0.126928, 18.420681], [1.0, 2.0, 0.0, 10.21034])
    """
    logit = demonstration_logit.double()
    paid = -((-logit).sigmoid() + FLOOR).log()
    if form == "log_odds":
        paid = paid + torch.nn.functional.logsigmoid(logit)
    return (weight * paid + verifier_weight * reward).float()
