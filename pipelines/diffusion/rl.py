"""diffu-GRPO (d1, 2504.12216): groups of answers, advantages within a group, and clipped updates on one-step log-probabilities."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.catalogue import bind
from pipelines.data import chat
from pipelines.diffusion import inpaint, network
from pipelines.diffusion.likelihood import one_step, partly_shown
from pipelines.diffusion.network import Logits
from pipelines.diffusion.questions import Question
from pipelines.diffusion.sampler import until_end
from pipelines.diffusion.training import CPU, DiffusionLoop
from pipelines.engine.answering import RewardedLoop
from pipelines.engine.answering_kind import ADVANTAGE
from pipelines.engine.distribution import generator
from pipelines.engine.fixed_data import Epochs
from pipelines.engine.parallel import with_last
from pipelines.engine.policy import without_dropout
from pipelines.rlvr import graded
from pipelines.rlvr.ops import clipped, ratio
from pipelines.verifiers import Verdict

SUMS = ("clipped", "distance", "entropy", "tokens", "loss")
"""What the updates of a step add up, over their tokens."""


@dataclass
class Rollouts:
    """The answers of a step; rows of a group stand side by side."""

    rows: list[Question]
    answers: Tensor
    """int64 [B, G]."""
    verdicts: list[Verdict]
    injected: Tensor
    """bool [B, G], tokens of the solution that stood there from the start."""


@dataclass
class Estimates:
    """Of the tokens of a step's answers before its updates, for one update."""

    old: Tensor
    """float32 [B, G], one-step log-probabilities of the model as it wrote the answers."""
    reference: Tensor | None
    """float32 [B, G], of the starting model."""
    entropy: Tensor
    """float32 [B, G], in nats."""


def token_loss(
    logp: Tensor, old: Tensor, reference: Tensor | None, advantage: Tensor, clip: float, kl: float
) -> Tensor:
    """diffu-GRPO's loss of each token, float32 [B, G]: the clipped surrogate, and the distance from the reference.

        l = max(-rho A, -clip(rho, 1 - clip, 1 + clip) A) + kl (exp(d) - d - 1);   rho = exp(logp - old), d = reference - logp

    Args:
        logp, old, reference: float32 [B, G], one-step log-probabilities of the same tokens with the same tokens masked.
        advantage: float32 [B].

    >>> zero = torch.zeros(1, 1)
    >>> token_loss(zero, zero, zero, torch.tensor([0.5]), 0.2, 0.04).tolist()
    [[-0.5]]
    """
    loss = clipped(ratio(logp, old), advantage[:, None], clip, clip)
    return loss if reference is None else loss + kl * distance(logp, reference)


def distance(logp: Tensor, reference: Tensor) -> Tensor:
    """The estimate exp(d) - d - 1 with d = reference - logp of each token's distance from the reference, in nats, never negative."""
    d = (reference - logp).clamp(-20, 20)
    return torch.expm1(d) - d


class Trainer(DiffusionLoop, RewardedLoop):
    """One run; arguments as in `Loop`."""

    section = "diffusion_rl"

    def prepare(self, data: Path) -> None:
        """Read the questions, load the model and the reference, and plan the steps."""
        settings = self.settings
        self.set_up()
        self.advantage = bind(ADVANTAGE, settings.advantage)
        self.questions = self.reader.split(data, settings.split, None)
        if settings.heldout is not None and settings.measure is not None:
            self.ask(self.reader.split(data, settings.heldout, None))
        self.reference: Logits | None = None
        if settings.kl > 0:
            frozen = self._whole_network().requires_grad_(False).to(self.device)
            without_dropout(frozen)
            self.reference = network.logits_of(frozen, self.model_settings.dtype)
        self.schedule(len(self.questions), settings.prompts, settings.updates)
        self.epochs = Epochs(partial(self.order, len(self.questions)), settings.prompts)

    def make_step(self, step: int) -> dict[str, float]:
        """Write answers, compare them within their groups, and learn from them in some updates."""
        began = time.perf_counter()
        rollouts, metrics = self._rollouts(step)
        written = time.perf_counter()
        columns = graded.columns(rollouts.verdicts, self.settings.group_size)
        advantage = self.advantage(columns).to(self.device)
        kept = until_end(rollouts.answers, chat.stops(self.tokenizer)) & columns["scored"].to(self.device)[:, None]
        estimates = self._estimates(rollouts, step)
        stepped: dict[str, float] = {}
        sums = dict.fromkeys(SUMS, 0.0)
        for number, known in enumerate(estimates):
            self._update(rollouts, advantage, kept, known, self._draw(step, number), sums)
            stepped = self.stepper.step(step * self.settings.updates + number)
        tokens = max(sums["tokens"], 1.0)
        self.tokens_seen += int(kept.sum())
        return {
            **metrics,
            **graded.metrics(columns, rollouts.verdicts),
            "rollout/length_mean": float(kept.sum(1).float().mean()),
            "policy/clip_share": sums["clipped"] / tokens,
            "policy/kl": sums["distance"] / tokens,
            "policy/entropy": sums["entropy"] / tokens,
            "loss/train": sums["loss"] / self.settings.updates,
            **{f"optimizer/{name}": value for name, value in stepped.items()},
            "time/rollout_s": written - began,
            "time/step_s": time.perf_counter() - began,
        }

    def _draw(self, step: int, update: int) -> torch.Generator:
        """Of the tokens of prompts that are masked in an update; the same for the old, the new and the reference model."""
        return generator(CPU, self.seed, step, "prompt masks", update)

    def _rollouts(self, step: int) -> tuple[Rollouts, dict[str, float]]:
        size, chosen = self.settings.group_size, self.epochs.step(step)
        rows = [self.questions[number] for number in chosen for _ in range(size)]
        draws = [generator(CPU, self.seed, step, "answer", g, k) for g in range(len(chosen)) for k in range(size)]
        answers = self.writer.write(rows, self.settings.sampling, draws)
        injected = torch.zeros_like(answers, dtype=torch.bool)
        rollouts = Rollouts(rows, answers, self.reader.verdicts(rows, answers), injected)
        return rollouts, {} if self.settings.inpainting is None else self._inpaint(rollouts, step)

    def _inpaint(self, rollouts: Rollouts, step: int) -> dict[str, float]:
        """Write groups without a correct answer again around parts of their solutions, and put correct answers into their first places."""
        settings, size, mask = self.settings.inpainting, self.settings.group_size, self.mask
        failed, shown, draws = [], [], []
        for start in range(0, len(rollouts.rows), size):
            if any(verdict.correct is not False for verdict in rollouts.verdicts[start : start + size]):
                continue  # a correct one, or one that nobody could judge
            solution = self.reader.solution(rollouts.rows[start].problem)
            if solution is None:
                continue
            failed.append(start)
            draw = generator(CPU, self.seed, step, "inpainting", start)
            length = self.settings.answer_length
            shown += [
                inpaint.shown(solution, length, mask, share, settings, draw)
                for share in inpaint.shares(size, settings, draw)
            ]
            draws += [generator(CPU, self.seed, step, "inpainted", start, k) for k in range(size)]
        metrics = {"inpainting/groups": len(failed) / (len(rollouts.rows) / size), "inpainting/rescued": 0.0}
        if not failed:
            return metrics
        begun = torch.stack(shown)
        rows = [rollouts.rows[start + k] for start in failed for k in range(size)]
        answers = self.writer.write(rows, self.settings.sampling, draws, begun)
        verdicts = self.reader.verdicts(rows, answers)
        for number, start in enumerate(failed):
            correct = [k for k in range(number * size, (number + 1) * size) if verdicts[k].correct]
            draw = generator(CPU, self.seed, step, "inpainting choice", start)
            picked = torch.randperm(len(correct), generator=draw)[: settings.replaced].tolist()
            metrics["inpainting/rescued"] += bool(picked) / len(failed)
            for place, k in enumerate(correct[i] for i in picked):
                rollouts.answers[start + place] = answers[k]
                rollouts.injected[start + place] = (begun[k] != mask).to(self.device)
                rollouts.verdicts[start + place] = verdicts[k]
        return metrics | {"inpainting/correct": sum(bool(v.correct) for v in verdicts) / len(verdicts)}

    @torch.no_grad()
    def _estimates(self, rollouts: Rollouts, step: int) -> list[Estimates]:
        """Of every update, before the first."""
        return [self._estimate(rollouts, self._draw(step, number)) for number in range(self.settings.updates)]

    def _estimate(self, rollouts: Rollouts, draw: torch.Generator) -> Estimates:
        old, reference, entropy = [], [], []
        for prompts, part in self._shown(rollouts, draw):
            logp, uncertain = one_step(self.logits, prompts, rollouts.answers[part], self.mask)
            old.append(logp)
            entropy.append(uncertain)
            if self.reference is not None:
                reference.append(one_step(self.reference, prompts, rollouts.answers[part], self.mask)[0])
        return Estimates(torch.cat(old), torch.cat(reference) if reference else None, torch.cat(entropy))

    def _shown(self, rollouts: Rollouts, draw: torch.Generator) -> Any:
        """Parts of the rows with their prompts partly masked; the masks do not depend on how the rows are divided."""
        prompts = self.reader.prompts(rollouts.rows, self.device)
        masked = partly_shown(prompts, self.mask, self.settings.prompt_masking, draw)
        return ((masked.rows(part), part) for part in self.parts(rollouts.rows))

    def _update(
        self,
        rollouts: Rollouts,
        advantage: Tensor,
        kept: Tensor,
        known: Estimates,
        draw: torch.Generator,
        sums: dict[str, float],
    ) -> None:
        """Gradients of one update; adds to the sums over tokens of the step's updates."""
        settings = self.settings
        if settings.inpainting is not None:
            kept = kept & inpaint.trained(known.entropy, rollouts.injected & kept, settings.inpainting.entropy_share)
        count = kept.sum().clamp(min=1)
        for (prompts, part), last in with_last(self._shown(rollouts, draw)):
            logp, _ = one_step(self.logits, prompts, rollouts.answers[part], self.mask)
            reference = None if known.reference is None else known.reference[part]
            losses = token_loss(logp, known.old[part], reference, advantage[part], settings.clip, settings.kl)
            loss = (losses * kept[part]).sum() / count
            self.weights.backward(loss, last=last)
            with torch.no_grad():
                rho, sign = ratio(logp, known.old[part]), advantage[part, None].sign()
                outside = (rho * sign > sign + settings.clip) & (sign != 0)
                away = torch.zeros_like(logp) if reference is None else distance(logp, reference)
                values = {
                    "clipped": outside,
                    "distance": away,
                    "entropy": known.entropy[part],
                    "tokens": torch.ones_like(logp),
                }
                for name, value in values.items():
                    sums[name] += float((value * kept[part]).sum())
                sums["loss"] += float(loss)
