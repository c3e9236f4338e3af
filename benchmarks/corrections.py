"""Corrections of the sampler-trainer mismatch under planted mismatches: bias of the gradient, what is left out, and the reward reached.

    python -m benchmarks.corrections                 all corrections and mismatches, 3 seeds
    python -m benchmarks.corrections --seeds 1       a first look

A recurrent model of 6,000 weights writes six digits from 0 to 3 whose sum the prompt asks for: 4,096 answers to each of eight prompts,
so that every expectation is a sum over all of them. The advantage, the credit parts, the objective and the mean are the pipeline's own.

- Bias: a policy that was trained for 40 clean steps, and a sampler that differs from it. The expected gradient of the
  corrected loss over the sampler's answers, beside the gradient of the expected reward: angle (degrees) and relative distance, both 0 where
  nothing is biased. The baseline is the sampler's mean reward.
- Training: 80 steps of 64 answers from a fresh model, one update each, with the mismatch in every step. The reward is the expected one of
  the final weights. Intervals are Student's over seeds; differences are to `nothing` with the same mismatch and seed.

Mismatches: the sampler's temperature is 1.2 and the trainer does not know; its weights are rounded to bfloat16 or to 4 bits; they are 4 or
16 updates old. Writes benchmarks/results/corrections.json.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor, nn

from benchmarks import sides
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm

DIGITS, LENGTH, PROMPTS, GROUP = 4, 6, 8, 8
LEAST = 5
"""Sum that the first prompt asks for; the others ask for the next ones."""
WARM, STEPS, RATE = 40, 80, 0.01

TEMPERATURE = 1.2
TRAINER = {"old_logp": "trainer"}
TOKEN_TIS = {"kind": "truncated_is"}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "nothing": TRAINER,
    "ratio to the sampler, clipped": {},
    "token TIS": TRAINER | {"credit": [TOKEN_TIS]},
    "sequence TIS": TRAINER | {"credit": [TOKEN_TIS | {"level": "sequence"}]},
    "untruncated token weights": TRAINER | {"credit": [TOKEN_TIS | {"cap": None}]},
    "IcePop": TRAINER | {"credit": ["masked_is"]},
    "sequence MIS": TRAINER | {"credit": [{"kind": "masked_is", "level": "sequence", "low": None, "high": 3.0}]},
    "Geo-RS": TRAINER | {"credit": ["rejection"]},
    "Geo-RS, wide, and token TIS": TRAINER | {"credit": [{"kind": "rejection", "high": 1.1}, TOKEN_TIS]},
    "K3-RS and token TIS": TRAINER | {"credit": [{"kind": "rejection", "measure": "k3"}, TOKEN_TIS]},
    "M2PO": TRAINER | {"credit": ["m2po", TOKEN_TIS | {"cap": None}]},
    "off-policy sequence mask": {"objective": {"kind": "opsm", "delta": 0.1}},
}
"""Fields of `rlvr`, beside those that all runs share."""


class Tiny(nn.Module):
    """A GRU over the prompt and the digits so far."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(PROMPTS + DIGITS, 32)
        self.body = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, DIGITS)

    def forward(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities [B, T, digits] of each place, for prompts [B] and digits [B, T]."""
        inputs = torch.cat([prompts[:, None], tokens[:, :-1] + PROMPTS], 1)
        return self.head(self.body(self.embed(inputs))[0]).log_softmax(-1)

    def log_probs(self, prompts: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probability of each digit, [B, T]."""
        logp = (self(prompts, tokens) / temperature).log_softmax(-1)
        return logp.gather(-1, tokens[..., None]).squeeze(-1)

    @torch.no_grad()
    def sample(self, prompts: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        """Answers [B, T]."""
        step, state, drawn = prompts[:, None], None, []
        for _ in range(LENGTH):
            out, state = self.body(self.embed(step), state)
            probability = (self.head(out[:, 0]) / temperature).softmax(-1)
            drawn.append(torch.multinomial(probability, 1, generator=generator))
            step = drawn[-1] + PROMPTS
        return torch.cat(drawn, 1)


def rounded(model: Tiny, bits: int) -> Tiny:
    """A copy with weights of so many bits, symmetric per tensor; 16 bits are bfloat16."""
    other = copy.deepcopy(model)
    for weight in other.parameters():
        if bits == 16:
            weight.data = weight.data.bfloat16().float()
        else:
            scale = weight.data.abs().max() / (2 ** (bits - 1) - 1)
            weight.data = (weight.data / scale).round() * scale
    return other


Sampler = Callable[[list[Tiny]], tuple[Tiny, float]]
"""From the weights of each update so far to the model that samples, and its temperature."""


def aged(updates: int) -> Sampler:
    """The weights of so many updates ago."""
    return lambda history: (history[max(0, len(history) - 1 - updates)], 1.0)


MISMATCHES: dict[str, Sampler] = {
    "none": lambda history: (history[-1], 1.0),
    "temperature 1.2": lambda history: (history[-1], TEMPERATURE),
    "bfloat16": lambda history: (rounded(history[-1], 16), 1.0),
    "4 bits": lambda history: (rounded(history[-1], 4), 1.0),
    "4 updates old": aged(4),
    "16 updates old": aged(16),
}
TOKENS = torch.tensor(list(product(range(DIGITS), repeat=LENGTH)))
"""Every answer, int64 [4096, 6]."""


def reward_of(prompts: Tensor, tokens: Tensor) -> Tensor:
    """1 where the digits have the sum that the prompt asks for, float32 [B]."""
    return (tokens.sum(1) == prompts + LEAST).float()


def everything() -> tuple[Tensor, Tensor]:
    """Every prompt with every answer: int64 [B] and [B, T]."""
    return torch.arange(PROMPTS).repeat_interleave(len(TOKENS)), TOKENS.repeat(PROMPTS, 1)


@torch.no_grad()
def expected_reward(model: Tiny) -> float:
    """Over all prompts and answers."""
    prompts, tokens = everything()
    return float((model.log_probs(prompts, tokens).sum(1).exp() * reward_of(prompts, tokens)).sum()) / PROMPTS


def columns_of(prompts: Tensor, tokens: Tensor, old: Tensor, sampled: Tensor, rlvr: Rlvr, step: int) -> dict[str, Any]:
    """What the methods read of a step."""
    rows = torch.ones(len(tokens), dtype=torch.bool)
    mask, reward = torch.ones_like(tokens, dtype=torch.bool), reward_of(prompts, tokens)
    columns = {
        "step": step, "total_steps": STEPS, "group": prompts, "problem": prompts, "scored": rows, "in_loss": rows,
        "on_policy": rows, "replayed": ~rows, "truncated": ~rows, "unfinished": ~rows, "teacher_forced": ~mask, "mask": mask,
        "reward": reward, "raw_reward": reward, "correct": reward, "length": mask.sum(1).float(), "token": tokens, "logp_old": sampled,
    }  # fmt: skip
    return columns | ({"logp_sampler": sampled, "logp_old": old} if rlvr.old_logp == "trainer" else {})


def settings(correction: str) -> Rlvr:
    """The stage's section with a correction."""
    shared = {
        "split": "rlvr",
        "steps": STEPS,
        "advantage": {"kind": "grpo", "scale": "none"},
        "loss_aggregation": "token_mean",
    }
    return Rlvr.model_validate({"objective": "clip", "divergence": None} | shared | CORRECTIONS[correction])


def left_out(columns: dict[str, Any], before: Tensor, weight: Tensor | None = None) -> float:
    """Share of the tokens that had an advantage and have lost it, or have left the loss; `weight` [B] says how much a row counts."""
    had = (before != 0).float() * (1.0 if weight is None else weight[:, None])
    lost = ((columns["advantage"] == 0) | (columns["loss_share"] == 0)).float()
    return float((had * lost).sum() / had.sum().clamp(min=1e-12))


def train(correction: str, mismatch: str, seed: int, steps: int) -> tuple[list[Tiny], float]:
    """The model after each update, the first untrained, and the mean share of the tokens that was left out."""
    rlvr, draw = settings(correction), torch.Generator().manual_seed(seed)
    update = algorithm.Update.of(rlvr)
    plain = algorithm.Update.of(settings("nothing"))
    torch.manual_seed(seed)
    model = Tiny()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    history, shares = [copy.deepcopy(model)], []
    prompts = torch.arange(PROMPTS).repeat_interleave(GROUP)
    for step in range(steps):
        sampler, temperature = MISMATCHES[mismatch](history)
        tokens = sampler.sample(prompts, temperature, draw)
        with torch.no_grad():
            sampled, old = sampler.log_probs(prompts, tokens), model.log_probs(prompts, tokens)
            if temperature != 1.0:
                sampled = sampler.log_probs(prompts, tokens, temperature)
        columns = columns_of(prompts, tokens, old, sampled, rlvr, step)
        credited = algorithm.weigh(update, algorithm.assign_credit(update, columns))
        before = algorithm.assign_credit(plain, columns)["advantage"]
        shares.append(left_out(credited, before))
        optimizer.zero_grad()
        algorithm.loss(update, credited, model.log_probs(prompts, tokens)[..., None]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(copy.deepcopy(model))
    return history, statistics.mean(shares)


def flat(loss: Tensor, model: Tiny) -> Tensor:
    """The gradient of a loss as one vector."""
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def true_gradient(model: Tiny) -> Tensor:
    """Of minus the expected reward, a token."""
    prompts, tokens = everything()
    return flat(
        -(model.log_probs(prompts, tokens).sum(1).exp() * reward_of(prompts, tokens)).sum() / PROMPTS / LENGTH, model
    )


def bias(correction: str, mismatch: str, history: list[Tiny], right: Tensor) -> dict[str, float]:
    """How the expected gradient of the corrected loss differs from the true one, over every answer."""
    rlvr, model = settings(correction), history[-1]
    update = algorithm.Update.of(rlvr)
    sampler, temperature = MISMATCHES[mismatch](history)
    prompts, tokens = everything()
    reward = reward_of(prompts, tokens)
    logp = model.log_probs(prompts, tokens)
    with torch.no_grad():
        sampled = sampler.log_probs(prompts, tokens, temperature)
        drawn = sampled.sum(1).exp() / PROMPTS
        mean = torch.zeros(PROMPTS).index_add_(0, prompts, drawn * PROMPTS * reward)
        columns = columns_of(prompts, tokens, logp.detach(), sampled, rlvr, 0)
        columns["loss_share"] = columns["mask"].float()
        columns = algorithm.set_advantage(reward - mean[prompts], columns)
        before = columns["advantage"]
        for part in update.credit:
            columns = algorithm.set_advantage(part(columns), columns)
    weight = columns["loss_share"] * drawn[:, None]
    per_token = update.objective(columns | {"logp": logp})
    ours = flat((per_token * weight).sum() / weight.sum().clamp(min=1e-12), model)
    cosine = float(torch.dot(ours, right) / (ours.norm() * right.norm()).clamp(min=1e-20))
    return {
        "degrees": math.degrees(math.acos(max(-1.0, min(1.0, cosine)))),
        "distance": float((ours - right).norm() / right.norm()),
        "left_out": left_out(columns, before, drawn),
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean and half the width of the 95 % interval; of one value none.

    >>> summary([1.0, 2.0, 3.0])
    {'mean': 2.0, 'half': 2.484}
    """
    count, mean = len(values), statistics.mean(values)
    if count < 2:
        return {"mean": round(mean, 4)}
    half = float(student.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5
    return {"mean": round(mean, 4), "half": round(half, 3)}


def measure(mismatch: str, seeds: range) -> dict[str, dict[str, Any]]:
    """Every correction under one mismatch."""
    warm = [train("nothing", "none", seed, WARM)[0] for seed in seeds]
    right = [true_gradient(history[-1]) for history in warm]
    rewards: dict[str, list[float]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name in CORRECTIONS:
        runs = [train(name, mismatch, seed, STEPS) for seed in seeds]
        rewards[name] = [expected_reward(history[-1]) for history, _ in runs]
        gains = [after - before for after, before in zip(rewards[name], rewards["nothing"], strict=True)]
        rows[name] = {
            "reward": summary(rewards[name]),
            "gain": summary(gains),
            "left_out": statistics.mean(share for _, share in runs),
        }
        if name != "M2PO":  # what it leaves out depends on the sample
            parts = [bias(name, mismatch, *each) for each in zip(warm, right, strict=True)]
            rows[name] |= {f"bias_{key}": summary([part[key] for part in parts]) for key in parts[0]}
        print(f"{mismatch:18s}{name:30s}{rows[name]}", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mismatches", nargs="+", choices=list(MISMATCHES), default=list(MISMATCHES))
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    began = time.perf_counter()
    results = {mismatch: measure(mismatch, range(args.seeds)) for mismatch in args.mismatches}
    seconds = round(time.perf_counter() - began)
    sides.store("corrections", {"seeds": args.seeds, "steps": STEPS, "seconds": seconds, "results": results})
    print(f"{seconds} s")


if __name__ == "__main__":
    main()
