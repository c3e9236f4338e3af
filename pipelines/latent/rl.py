"""Groups of answers whose thoughts are read as mixtures, advantages within a group, and a loss of places.

What HRPO (2505.18454) and Latent-GRPO (2604.27998) do in their own ways is in the policy (pipelines/latent/policy.py).
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.base.files import read_json
from pipelines.contract.catalogue import bind
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import stream_id
from pipelines.engine import models, parallel
from pipelines.engine.answering import RewardedLoop, Shares, correctness, mean_known, summary
from pipelines.engine.answering_kind import ADVANTAGE
from pipelines.engine.fixed_data import Epochs
from pipelines.engine.optimizer import FACTOR
from pipelines.engine.parallel import with_last
from pipelines.engine.policy import without_dropout
from pipelines.latent.answers import Question, Writer
from pipelines.latent.policies import policy_of
from pipelines.latent.policy import LatentPolicy, Written
from pipelines.latent.sampler import Scored, score
from pipelines.recipe.model_path import MAKES
from pipelines.recipe.stage_kind import LATENT_MODEL, MODEL
from pipelines.rlvr import graded
from pipelines.rlvr.divergence.k3 import k3
from pipelines.rlvr.ops import clipped, ratio

SUMS = ("distance", "entropy", "tokens", "mixed", "share", "mixture", "loss")
"""What the updates of a step add up, over their tokens."""
GAP = "rollout/logp_gap_max"
"""Largest difference, in nats, between a token's log-probability when it was drawn and when it is trained, before the first update."""


def token_loss(
    logp: Tensor, old: Tensor, reference: Tensor | None, advantage: Tensor, clip: float, kl: float
) -> Tensor:
    """The loss of each token, float32 [B, G]: the clipped surrogate, and k3 from the reference.

    Before the first update the ratio is 1, and this is the official code's `grpo_compute_loss`, -A + beta (exp(d) - d - 1) with
    d = reference - logp, in value and in gradient.

    Args:
        logp, old, reference, advantage: float32 [B, G].

    >>> logp = torch.tensor([[-1.0]]); reference = torch.tensor([[-1.5]])
    >>> round(token_loss(logp, logp, reference, torch.tensor([[0.5]]), 0.2, 1.0).item(), 4)
    -0.3935
    """
    loss = clipped(ratio(logp, old), advantage, clip, clip)
    return loss if reference is None else loss + kl * k3(logp, reference)


class Weights(parallel.Weights):
    """The weights of a policy; arguments as in `parallel.Weights`."""

    def save(self, tokenizer: Any, folder: Path, about: dict[str, Any]) -> None:
        """Write the network as a folder of transformers, and what the policy has beside it."""
        models.save_model(self.model.network, tokenizer, folder, about)
        self.model.save(folder)


class Trainer(RewardedLoop):
    """One run; arguments as in `Loop`."""

    section = "latent_rl"
    takes = (MODEL, LATENT_MODEL)
    measured = "heldout.json"

    def prepare(self, data: Path) -> None:
        """Load policy and reference, read the questions and plan the steps."""
        settings = self.settings
        self.before, self.shares, self.twin = {}, {}, {}
        network = self.load_network()
        self.model = policy_of(
            network, self.tokenizer, settings, origin=self.origin, seed=self.seed, dtype=self.model_settings.dtype
        )
        self.policy = self.engine.policy(network, Sampling(), dtype=self.model_settings.dtype)
        self.weights = Weights(self.model, self.policy, self.world)
        self.optimizer = self.engine.optimizer(self.model, settings.optimizer)
        self._set_own_rates()
        self.writer = Writer(self.model, self.tokenizer, settings, self.section, self.report.event, self.device)
        self.advantage = bind(ADVANTAGE, settings.advantage)
        self.questions = self.writer.split(data, settings.split)
        self.heldout: list[Question] = []
        if settings.heldout is not None and settings.measure is not None:
            self.heldout = self.writer.split(data, settings.heldout)[: settings.measure.limit]
            self.asked = [question.problem for question in self.heldout]
        if "twin" in self.inputs:
            self.twin = self._twin(self.inputs["twin"])
        self.reference: LatentPolicy | None = None
        if settings.kl > 0:
            frozen = self._whole_network().requires_grad_(False).to(self.device)
            without_dropout(frozen)
            self.reference = self.model.reference(frozen)
        self.schedule(len(self.questions), settings.prompts, settings.updates)
        self.epochs = Epochs(partial(self.order, len(self.questions)), settings.prompts)

    def about(self) -> dict[str, Any]:
        """Also that no stage may read the model as one of tokens, where thoughts are read in another way."""
        return super().about() | ({MAKES: LATENT_MODEL} if self.model.thinks else {})

    def _set_own_rates(self) -> None:
        """Give weights that the policy trains at rates of their own groups of the optimizer, with the weight decay of all."""
        settings, groups = self.settings, self.model.own_rates()
        own = {id(weight) for weights, _ in groups for weight in weights}
        for group in self.optimizer.param_groups:
            group["params"] = [weight for weight in group["params"] if id(weight) not in own]
        for weights, rate in groups:
            factor = rate / settings.optimizer.learning_rate
            self.optimizer.add_param_group(
                {"params": weights, "weight_decay": settings.optimizer.weight_decay, FACTOR: factor}
            )

    def _twin(self, folder: Path) -> Shares:
        """What the twin answered correctly when it had been trained."""
        told = read_json(folder / self.measured)
        if told["questions"] != [problem.uid for problem in self.asked]:
            raise DataError(
                f"{self.section}.twin",
                "it was asked other held-out questions",
                "Give both stages the same data, split, max_length and measure.",
            )
        return dict(told["after"])

    def answer(self) -> Shares:
        """Answer the held-out questions, with the most probable tokens and with drawn ones."""
        samples = self.settings.measure.samples
        several = [question for question in self.heldout for _ in range(samples)]
        streams = [
            stream_id(self.seed, "heldout", problem.uid, number) for problem in self.asked for number in range(samples)
        ]
        certain = self.writer.write(self.heldout, [0] * len(self.heldout), greedy=True)
        greedy = correctness(self.writer.verdicts(self.heldout, certain))
        drawn = correctness(self.writer.verdicts(several, self.writer.write(several, streams)))
        means = [mean_known(drawn[start : start + samples]) for start in range(0, len(drawn), samples)]
        return {"greedy": greedy, "sampled": means}

    def answered(self) -> dict[str, float]:
        """Also beside the twin."""
        return super().answered() | self._over_twin()

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """Also beside the twin."""
        return super().summary(metrics) | self._over_twin()

    def _over_twin(self) -> dict[str, float]:
        """Gains over the trained twin, paired by question."""
        gains = summary(self.shares, self.twin)
        prefix = "heldout/gain_"
        return {
            name.replace(prefix, "heldout/over_twin_"): gain for name, gain in gains.items() if name.startswith(prefix)
        }

    def make_step(self, step: int) -> dict[str, float]:
        """Write answers, compare them within their groups, and learn from them in some updates."""
        began = time.perf_counter()
        size, chosen = self.settings.group_size, self.epochs.step(step)
        rows = [self.questions[number] for number in chosen for _ in range(size)]
        streams = [stream_id(self.seed, step, "answer", g, k) for g in range(len(chosen)) for k in range(size)]
        written = self.writer.write(rows, streams)
        verdicts = self.writer.verdicts(rows, written)
        drawn = time.perf_counter()
        columns = graded.columns(verdicts, size)
        finished, scored = self.writer.finished(written), columns["scored"].to(self.device)
        compared = columns | {"scored": columns["scored"] & self.model.counts(finished).cpu()}
        advantage = self.model.credit(self.advantage(compared).to(self.device), written, finished, size)
        reference = self._reference(rows, written)
        stepped: dict[str, float] = {}
        sums, gap = dict.fromkeys(SUMS, 0.0), 0.0
        for number in range(self.settings.updates):
            largest = self._update(rows, written, reference, advantage, scored, sums)
            gap = gap if number else largest
            stepped = self.stepper.step(step * self.settings.updates + number)
        tokens, mixed = max(sums["tokens"], 1.0), sums["mixed"]
        self.tokens_seen += int(written.kept.sum())
        return {
            **graded.metrics(columns, verdicts),
            "rollout/length_mean": float(written.kept.sum(1).float().mean()),
            "rollout/unfinished": float((~finished).float().mean()),
            GAP: gap,
            "policy/kl": sums["distance"] / tokens,
            "policy/entropy": sums["entropy"] / tokens,
            "latent/places": mixed / tokens,
            **({"latent/token_share": sums["share"] / mixed, "latent/mixture_share": sums["mixture"] / mixed} if mixed else {}),
            "loss/train": sums["loss"] / self.settings.updates,
            **{f"optimizer/{name}": value for name, value in stepped.items()},
            "time/rollout_s": drawn - began,
            "time/step_s": time.perf_counter() - began,
        }  # fmt: skip

    @torch.no_grad()
    def _reference(self, rows: list[Question], written: Written) -> Tensor | None:
        """float32 [B, G], log-probabilities of the starting model."""
        if self.reference is None:
            return None
        return torch.cat([self._score(self.reference, rows, written, part).logp for part in self.writer.parts(rows)])

    def _score(
        self,
        policy: LatentPolicy,
        rows: list[Question],
        written: Written,
        part: slice,
        advantage: Tensor | None = None,
    ) -> Scored:
        prompts = self.writer.prompts(rows[part])
        return score(policy, prompts, written.rows(part), self.settings.sampling, advantage)

    def _update(
        self,
        rows: list[Question],
        written: Written,
        reference: Tensor | None,
        advantage: Tensor,
        scored: Tensor,
        sums: dict[str, float],
    ) -> float:
        """Gradients of one update; adds to the sums over tokens of the step's updates, and returns the gap of log-probabilities."""
        settings, gap = self.settings, 0.0
        every = written.kept & scored[:, None]
        for part, last in with_last(self.writer.parts(rows)):
            kept, old = every[part], written.logp[part]
            told = self._score(self.model, rows, written, part, advantage[part])
            known = None if reference is None else reference[part]
            losses = token_loss(told.logp, old, known, advantage[part], settings.clip, settings.kl)
            loss = self.model.reduced(losses, kept, every)
            self.weights.backward(loss, last=last)
            with torch.no_grad():
                mixed = written.latent[part] & kept
                gap = max(gap, float(((told.logp - old).abs() * kept).max()))
                sums["distance"] += 0.0 if known is None else float((k3(told.logp, known) * kept).sum())
                sums["entropy"] += float((told.entropy * kept).sum())
                sums["tokens"] += float(kept.sum())
                sums["mixed"] += float(mixed.sum())
                sums["share"] += float((told.share * mixed).sum())
                sums["mixture"] += float((self.model.rest(told.share) * mixed).sum())
                sums["loss"] += float(loss)
        return gap
