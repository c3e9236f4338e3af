"""Weight-only int8 for rollouts, tried with torchao: tokens per second, and what it does to the sampled tokens' log-probabilities.

    pip install --target FOLDER --no-deps torchao
    PYTHONPATH=FOLDER python -m benchmarks.int8          SmolLM2-135M-Instruct: float32, bfloat16, int8 over float32, one thread

Decoding steps with 8 and 64 rows, prefill left out; the kinds of weights take turns within each block, in processor seconds. Then the
mismatch of what each samples to the float32 policy: mean and 99.9th percentile of |d|, k3 and effective sample size, as the trainer
measures them. Prints, and stores nothing: no product code uses torchao.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import roofline, sides
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler
from pipelines.rlvr.mismatch import measure


def samplers(model: Any, kinds: Sequence[str]) -> dict[str, TorchSampler]:
    """A sampler of each kind of weights, without tokens that end a completion."""
    out = {}
    for kind in kinds:
        weights = model
        if kind == "int8":
            from torchao.quantization import Int8WeightOnlyConfig, quantize_

            weights = copy.deepcopy(model)
            quantize_(weights, Int8WeightOnlyConfig(), filter_fn=lambda module, name: _quantized(module, name))
        out[kind] = TorchSampler(weights, stop=[], pad=0, dtype="bfloat16" if kind == "bfloat16" else "float32")
    return out


def _quantized(module: torch.nn.Module, name: str) -> bool:
    """All matrices but the tied output head."""
    return isinstance(module, torch.nn.Linear) and "lm_head" not in name


def prompts_of(rows: int, context: int, vocabulary: int) -> list[list[int]]:
    """Prompts that share all but their last token."""
    return [[5 + i % 7 for i in range(context - 1)] + [100 + 37 * row % (vocabulary - 100)] for row in range(rows)]


def mismatch(sampler: TorchSampler, policy: Policy, prompts: list[list[int]], tokens: int) -> dict[str, float]:
    """Differences of the float32 policy's log-probabilities to those that were sampled with."""
    drawn = sampler.extend(prompts, Sampling(max_tokens=tokens), generator(torch.device("cpu"), 1))
    ids = torch.tensor([prompt + completion.tokens for prompt, completion in zip(prompts, drawn, strict=True)])
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, len(prompts[0]) :] = True
    with torch.no_grad():
        logp = policy.logp(ids, mask).logp[mask]
    sampled = torch.tensor([value for completion in drawn for value in completion.logp])
    return {name.removeprefix("mismatch/"): value for name, value in measure(logp - sampled).items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; default: SmolLM2-135M-Instruct")
    parser.add_argument("--kinds", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=4, help="decoding steps")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    folder = args.model or sides.smollm2(args.folder / "smollm2")[0]
    model = models.load_model(folder, Model(path=str(folder)))
    vocabulary = model.config.get_text_config().vocab_size
    by_kind = samplers(model, args.kinds)
    for rows in args.rows:
        prompts = prompts_of(rows, args.context, vocabulary)
        times: dict[str, list[float]] = {kind: [] for kind in by_kind}
        for _ in range(args.blocks):
            for kind, sampler in by_kind.items():
                times[kind].append(roofline.step_seconds(sampler, prompts, args.tokens))
        for kind, seconds in times.items():
            rates = [rows / each for each in seconds]
            print(
                f"{rows} rows, {kind}: {statistics.median(rates):.1f} tokens/s [{min(rates):.1f}, {max(rates):.1f}]",
                flush=True,
            )
    policy = Policy(model, Sampling())
    prompts = prompts_of(max(args.rows), args.context, vocabulary)
    for kind, sampler in by_kind.items():
        values = mismatch(sampler, policy, prompts, 16)
        print(f"mismatch, {kind}:", {name: float(f"{value:.3g}") for name, value in values.items()}, flush=True)


if __name__ == "__main__":
    main()
