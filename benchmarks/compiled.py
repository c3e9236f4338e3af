"""What compiling gains on a GPU: decoding steps and training passes of a random model of Qwen2.5-0.5B's shape, as it is and compiled.

    python -m benchmarks.compiled

Decoding: 512, 64 and 8 rows after prompts of 256 tokens that eight rows share. Training: forward and backward passes of at most 16,384
tokens over 64 rows of 256 prompt tokens and answers of 256 to 512, padded. bfloat16 under autocast, float32 weights. Seconds are the
shortest of three; the first call, which compiles, is told by itself. Writes benchmarks/results/compiled.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import roofline, sides
from benchmarks.step import QWEN
from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.compiled import compile_blocks
from pipelines.engine.layout import Layout, padded_layouts
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

WORDS = 32_000
PROMPT, ANSWER, SHARING = 256, 512, 8


def network(config: dict[str, Any]) -> Any:
    """A random model on the device."""
    sizes = dict(config)
    made = AutoConfig.for_model(sizes.pop("architecture"), vocab_size=WORDS, pad_token_id=0, **sizes)
    torch.manual_seed(0)
    with models.device():
        return AutoModelForCausalLM.from_config(made).float()


def rows_of(count: int, answer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows whose prompts are shared: tokens int64 [count, T] and the mask of answers of different lengths."""
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(5, WORDS, (-(-count // SHARING), PROMPT), generator=draw)
    tokens = torch.cat(
        [
            prompts.repeat_interleave(SHARING, 0)[:count],
            torch.randint(5, WORDS, (count, answer), generator=draw),
        ],
        1,
    )
    lengths = torch.randint(answer // 2, answer + 1, (count, 1), generator=draw)
    place = torch.arange(PROMPT + answer)
    return tokens, (place >= PROMPT) & (place < PROMPT + lengths)


def decoding(model: Any, rows: int, steps: int) -> dict[str, float]:
    """Milliseconds of a decoding step, prefill left out, and seconds of the first call."""
    sampler = TorchSampler(model, stop=[], pad=0, dtype="bfloat16", fixed=True)
    prompts = [row[:PROMPT] for row in rows_of(rows, SHARING)[0].tolist()]
    first = roofline.draw_seconds(sampler, prompts, steps + 1)
    return {"step_ms": min(roofline.step_seconds(sampler, prompts, steps) for _ in range(3)) * 1e3, "first_s": first}


def training(model: Any, count: int, answer: int, budget: int) -> dict[str, float]:
    """Milliseconds of all passes over the rows, tokens a second, TFLOPS, and seconds of the first time."""
    policy = Policy(model, Sampling(), dtype="bfloat16")
    tokens, mask = rows_of(count, answer)
    layouts: list[Layout] = list(padded_layouts(tokens, mask, torch.arange(count), budget))

    def run() -> float:
        began = roofline.clock()
        for layout in layouts:
            logp, _ = policy.score(layout, tokens.flatten()[layout.target])
            (-logp.mean()).backward()  # type: ignore[no-untyped-call]
        return roofline.clock() - began

    first = run()
    seconds = min(run() for _ in range(3))
    model.zero_grad(set_to_none=True)
    size = sum(layout.size for layout in layouts)
    weights = sum(weight.numel() for weight in model.parameters())
    return {
        "ms": seconds * 1e3, "tokens_per_s": size / seconds, "tflops": 6 * weights * size / seconds / 1e12, "first_s": first,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--small", action="store_true", help="a tiny model, to try the benchmark on a CPU; stores nothing"
    )
    small = parser.parse_args(arguments).small
    config = QWEN | ({"hidden_size": 56, "intermediate_size": 64, "num_hidden_layers": 1} if small else {})
    body: dict[str, Any] = {}
    for variant in ("as it is", "compiled"):
        model = network(config)
        if variant == "compiled":
            compile_blocks(model)
        found: dict[str, Any] = {
            f"decoding, {rows} rows": decoding(model, rows, 2 if small else 128)
            for rows in ((8,) if small else (512, 64, 8))
        }
        found["training"] = training(model, 4 if small else 64, 8 if small else ANSWER, 16_384)
        body[variant] = found
        for name, values in found.items():
            print(f"{variant}, {name}:", {what: round(value, 2) for what, value in values.items()}, flush=True)
    if not small:
        sides.store("compiled", body)


if __name__ == "__main__":
    main()
