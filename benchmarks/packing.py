"""Time of the same SFT tokens at several lengths of packed rows: it should not depend on `sft.max_length`.

    python -m benchmarks.packing                 4,096 tokens in documents of 30 to 120, rows of 256 to 4,096
    python -m benchmarks.packing --long 4096     with one document as long as the widest row

Forward and backward pass of a fresh Llama (4 layers, 128 wide); the widths alternate, medians. Writes benchmarks/results/packing.json,
with `--long` packing-long.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import sides
from pipelines.contract.sampling import Sampling
from pipelines.engine.layout import best_fit
from pipelines.engine.policy import Policy
from pipelines.sft.pack import Document, micro_batches

WIDTHS = (256, 1024, 4096)
TOKENS, BUDGET = 4096, 4096


def documents(long: int) -> list[Document]:
    """Random documents of 30 to 120 tokens, TOKENS in all, and one of `long` tokens where that is not 0."""
    draw = random.Random(0)
    sizes: list[int] = []
    while sum(sizes) < TOKENS:
        sizes.append(draw.randint(30, 120))
    numbers = np.random.default_rng(0)
    return [Document(numbers.integers(4, 500, size).tolist(), 1) for size in [*sizes, *([long] if long else [])]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", type=int, default=0, help="tokens of one long document among the short ones")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=2 * max(WIDTHS),
    )  # fmt: skip
    policy = Policy(LlamaForCausalLM(config), Sampling())
    rows = documents(args.long)
    times: dict[int, list[float]] = {width: [] for width in WIDTHS if width >= args.long}
    passes: dict[int, int] = {}
    for _ in range(args.blocks + 1):
        for width, seconds in times.items():
            bins = best_fit([len(row.tokens) for row in rows], width)
            began, passes[width] = time.perf_counter(), 0
            for layout, targets in micro_batches(rows, bins, BUDGET):
                policy.score(layout, targets)[0].sum().backward()
                passes[width] += 1
            seconds.append(time.perf_counter() - began)
    measured = {width: statistics.median(seconds[1:]) for width, seconds in times.items()}
    for width, median in measured.items():
        print(f"rows of {width}: {median:.2f} s, {passes[width]} passes")
    body = {str(width): {"seconds": median, "passes": passes[width]} for width, median in measured.items()}
    sides.store(f"packing{'-long' if args.long else ''}", body)


if __name__ == "__main__":
    main()
