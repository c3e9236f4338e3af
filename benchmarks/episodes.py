"""Episodes in which the environment takes its time: lockstep beside episodes that do not wait for each other.

    python -m benchmarks.episodes                64 episodes of four turns, steps of 0.5 s in the mean

Steps sleep for exponentially distributed times, as tools, sandboxes and servers do, the same in every mode. The policy is a fresh Llama
(4 layers, 128 wide) that decodes in this process; the modes alternate, medians. Says of each its wall time, its ratio to lockstep, and the
share of the time in which the sampler decoded. Writes benchmarks/results/episodes.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import sides
from pipelines.base import plugins
from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.data.records import Message, Problem, Trajectory
from pipelines.engine.models import train_tokenizer
from pipelines.engine.sampler import TorchSampler
from pipelines.environments import Step, _stepping

TURNS, TOKENS = 4, 16
STEPPED = _stepping.MOST_THREADS
"""Environments that lockstep steps at once."""
MODES: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "lockstep, all environments at once": {},
    "asynchronous": {"asynchronous": True},
    "asynchronous, batch invariant": {"asynchronous": True, "batch_invariant": True},
}


class World:
    """An episode that answers every message after a time which its seed draws."""

    waits = True

    def reset(self, problem: Problem) -> list[Message]:
        """The problem's prompt."""
        self.mean_s, self.turns, self.seed = float(problem.info["mean_s"]), 0, 0
        return list(problem.prompt)

    def reseed(self, number: int) -> None:
        """What decides about its times."""
        self.seed = number

    def state_key(self) -> str:
        """The turns so far."""
        return str(self.turns)

    def step(self, message: str) -> Step:
        """Sleep, and ask again."""
        del message
        time.sleep(random.Random(f"{self.seed} {self.turns}").expovariate(1 / self.mean_s))
        self.turns += 1
        return Step("and then?", 0.0, self.turns == TURNS, "")

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as another one."""
        vars(self).update(state)


def problems(size: int, seed: int, *, mean_s: float) -> Iterator[dict[str, Any]]:
    """Prompts of several lengths."""
    draw = random.Random(seed)
    for number in range(size):
        prompt = [{"role": "user", "content": f"{number} " + "why " * draw.randint(1, 20)}]
        yield {
            "prompt": prompt,
            "answer": "",
            "verifier": "exact",
            "info": {"environment": "delayed", "mean_s": mean_s},
        }


PARTS = {"environments": {"delayed": sys.modules[__name__]}}


class Clocked:
    """A sampler, and the seconds that it has decoded for."""

    def __init__(self, sampler: TorchSampler) -> None:
        self.sampler, self.seconds, self.calls = sampler, 0.0, 0

    def extend(self, prefixes: Sequence[Sequence[int]], *arguments: Any, **options: Any) -> list[Completion]:
        """As `Sampler.extend`."""
        began = time.perf_counter()
        out = self.sampler.extend(prefixes, *arguments, **options)
        self.seconds, self.calls = self.seconds + time.perf_counter() - began, self.calls + 1
        return out


def setting(mean_s: float, episodes: int, group: int) -> tuple[list[RolloutRequest], RolloutContext]:
    """The requests, and what they are played with."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer("char", 128, ["abcdefghijklmnopqrstuvwxyz 0123456789?"])
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024,
    )  # fmt: skip
    sampler = TorchSampler(LlamaForCausalLM(config), stop=[tokenizer.eos_token_id], pad=tokenizer.pad_token_id)
    context = RolloutContext(
        Clocked(sampler),
        Sampling(max_tokens=TOKENS),
        episodes // group,
        Streams(0),
        False,
        version=0,
        tokenizer=tokenizer,
    )
    asked = []
    for number, row in enumerate(problems(episodes // group, 0, mean_s=mean_s)):
        problem = Problem(uid=f"{number:032x}", source="delayed", licence="MIT", **row)
        asked.append(RolloutRequest(problem, context.render([problem.prompt])[0], number, group))
    return asked, context


def play(
    mode: str, requests: list[RolloutRequest], context: RolloutContext
) -> tuple[list[Trajectory], dict[str, float]]:
    """The rows of one mode, and what they took."""
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": TURNS, **MODES[mode]}).fn
    clocked: Any = context.sampler
    context = replace(context, streams=Streams(0))
    _stepping.MOST_THREADS = len(requests) * requests[0].rollouts if "at once" in mode else STEPPED
    decoded, calls, began = clocked.seconds, clocked.calls, time.perf_counter()
    rows = rollout.run(requests, context)
    seconds = time.perf_counter() - began
    return rows, {"seconds": seconds, "decoding_s": clocked.seconds - decoded, "calls": clocked.calls - calls}


def rounding(together: Sequence[Trajectory], alone: Sequence[Trajectory]) -> dict[str, float]:
    """How far rows that were decoded together are from those that were decoded alone."""
    pairs = list(zip(together, alone, strict=True))
    same = [(mine, theirs) for mine, theirs in pairs if mine.tokens == theirs.tokens]
    return {
        "rows": len(pairs),
        "equal_tokens": len(same),
        "equal_log_probabilities": sum(mine.logp_old == theirs.logp_old for mine, theirs in same),
        "largest_difference": max(
            abs(x - y) for mine, theirs in same for x, y in zip(mine.logp_old, theirs.logp_old, strict=True)
        ),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mean", type=float, default=0.5, help="seconds of a step in the mean")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    plugins.activate(["benchmarks.episodes"])
    requests, context = setting(args.mean, args.episodes, args.group)
    measured: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    played: dict[str, list[Trajectory]] = {}
    for _ in range(args.blocks):
        for mode, lines in measured.items():
            played[mode], line = play(mode, requests, context)
            lines.append(line)
    body: dict[str, Any] = {"mean_s": args.mean, "episodes": args.episodes, "turns": TURNS, "modes": {}}
    for mode, lines in measured.items():
        pairs = zip(lines, measured["lockstep"], strict=True)
        body["modes"][mode] = shown = {
            "seconds": statistics.median(line["seconds"] for line in lines),
            "ratio": statistics.median(line["seconds"] / first["seconds"] for line, first in pairs),
            "decoding_share": statistics.median(line["decoding_s"] / line["seconds"] for line in lines),
            "calls": statistics.median(line["calls"] for line in lines),
        }
        print(f"{mode}: " + ", ".join(f"{name} {value:.2f}" for name, value in shown.items()))
    body["rounding"] = rounding(*list(played.values())[2:])
    print(f"decoded together and alone: {body['rounding']}")
    sides.store("episodes", body)


if __name__ == "__main__":
    main()
