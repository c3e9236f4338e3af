"""What the arithmetic of each method costs beside the step it belongs to.

    python -m benchmarks.methods

A batch of 256 rows x 512 tokens; every advantage, credit and objective, the objective with its backward pass, and the hidden-state
statistics of each that reads them. The step is the forward and backward pass of the 42 M benchmark model over the
same tokens, measured on 8 of the rows and taken times 32 (without the time of sampling, which only makes the share
smaller). The forward passes that some methods add are not arithmetic of theirs and are not in it: reading hidden states takes
one per step, a batch-coupled loss one per update. Writes benchmarks/results/methods.json.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, names
from pipelines.contract.columns import Phase
from pipelines.contract.sampling import Sampling
from pipelines.engine.layout import padded_layouts
from pipelines.engine.policy import Policy
from pipelines.laws import example_columns

ROWS, WIDTH, GROUP = 256, 512, 8
REPEATS = 3


def batch() -> dict[str, Any]:
    """Random columns of a step: prompts of 128 tokens, completions of up to 384, four turns."""
    draw = torch.Generator().manual_seed(0)
    length = torch.randint(100, WIDTH - 128, (ROWS,), generator=draw)
    place = torch.arange(WIDTH)
    mask = (place >= 128) & (place < 128 + length[:, None])
    reward = (torch.rand(ROWS, generator=draw) < 0.4).float()
    turn = torch.where(mask, ((place - 128) // 100).clamp(0, 3), -1)
    columns = example_columns.columns(mask, torch.arange(ROWS) // GROUP, reward, turn, phase=Phase.LOSS)
    return columns | {
        "token": torch.randint(4, 32_000, (ROWS, WIDTH), generator=draw),
        "max_tokens": torch.full((ROWS,), 384.0),
    }


def clock(work: Callable[[], Any]) -> float:
    """Median seconds of a few calls, after one to warm up."""
    work()
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    columns = batch()
    states = torch.randn(WIDTH - 256, 512)
    seconds: dict[str, float] = {}
    hidden_seconds: dict[str, float] = {}
    for slot in ("advantage", "credit", "objective"):
        for name in names(f"rlvr.{slot}"):
            bound = bind(f"rlvr.{slot}", name)

            seconds[f"{slot}/{name}"] = clock(partial(apply, bound, columns))
            if "hidden_stats" in (options := bound.fn.column_options()):
                summarise = options["hidden_stats"].summarise
                hidden_seconds[f"{slot}/{name}, hidden states"] = ROWS * clock(partial(summarise, states))
    step = step_seconds(columns, args.folder)
    worst = {s: max(v for k, v in seconds.items() if k.startswith(s)) for s in ("advantage", "credit", "objective")}
    share = sum(worst.values()) / step
    for name, value in sorted(seconds.items(), key=lambda kv: -kv[1]):
        print(f"{name:36s}{1e3 * value:9.2f} ms")
    print(
        f"forward and backward of the step: {step:.1f} s; the slowest of each slot together: {100 * share:.3f} % of it"
    )
    for name, value in hidden_seconds.items():
        print(f"{name}: {value:.2f} s, {100 * value / step:.2f} % of it")
    times = {k: 1e3 * v for k, v in (seconds | hidden_seconds).items()}
    sides.store("methods", {"milliseconds": times, "step_s": step, "share": share})


def apply(bound: Bound, columns: dict[str, Any]) -> Any:
    """One call of a method, an objective's with its backward pass; what it returned."""
    bound.fn.on_batch(columns)
    logp = (columns["logp_old"] + 0.01).requires_grad_(bound.slot == "rlvr.objective")
    result = bound(columns | {"logp": logp})
    if logp.requires_grad:
        (result * columns["mask"]).sum().backward()
    return result


def step_seconds(columns: dict[str, Any], folder: Path) -> float:
    """Forward and backward of the 42 M model over the batch, from 8 of its rows."""
    from transformers import AutoModelForCausalLM

    path, _ = sides.wide(folder / "wide")
    policy = Policy(AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False), Sampling())
    rows = torch.arange(8)

    def once() -> None:
        for layout in padded_layouts(columns["token"], columns["mask"], rows, 2048):
            policy.score(layout, columns["token"].flatten()[layout.target])[0].sum().backward()
        policy.model.zero_grad()

    return clock(once) * ROWS / len(rows)


if __name__ == "__main__":
    main()
