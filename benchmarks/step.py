"""Time of one RLVR step beside TRL's GRPOTrainer: same weights, prompts, group size, lengths, reward, dtype, threads.

    python -m benchmarks.step                            the quickstart's model after SFT, 32 prompts x 8, up to 16 tokens
    python -m benchmarks.step --case quickstart-zero-variance   the same, with a reward that gives three quarters of the groups one score
    python -m benchmarks.step --case wide                42 M parameters, 32,000 words, 128-token prompts, 256-token completions
    python -m benchmarks.step --case wide-zero-variance         the same, three quarters of the groups with one score
    python -m benchmarks.step --case smollm2             SmolLM2-135M-Instruct after its recipe's SFT: 16 prompts x 8, up to 8 tokens
    python -m benchmarks.step --case vision              recipes/vision.yaml after SFT: a picture and a question, 32 x 8
    python -m benchmarks.step --case gpu                 a Qwen2.5-0.5B-shaped random model in bfloat16, for one large GPU
    python -m benchmarks.step --case gpu --no-peer       our side alone: model FLOPs utilisation, tokens per second, share of the bandwidth
    python -m benchmarks.step --case gpu --no-peer --vllm VLLM           our side decodes on a vLLM server that shares the GPU

Blocks of steps alternate between the two in one process, after a warm-up of each, so that a busy machine hurts
both. A step is sampling, scoring, update; neither side writes checkpoints. Writes benchmarks/results/step-CASE.json.
"""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import roofline, sides
from pipelines.data.chat import render_prompts
from tasks.preflight import step_time

QWEN = {
    "architecture": "llama",
    "attention_bias": True,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""The shape of Qwen2.5-0.5B, with the benchmark's vocabulary of 32,000."""
SMALL: dict[str, Any] = {"prompts": 32, "group": 8, "max_tokens": 16, "peer_rows": 128}
WIDE: dict[str, Any] = {
    "prompts": 4, "group": 8, "max_tokens": 256, "hit_rate": 0.5, "micro_batch_tokens": 4096, "peer_rows": 8,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "quickstart": SMALL,
    "quickstart-zero-variance": SMALL | {"hit_rate": 0.5, "live_every": 4},
    "wide": WIDE,
    "wide-zero-variance": WIDE | {"live_every": 4},
    "smollm2": {"prompts": 16, "group": 8, "max_tokens": 8, "micro_batch_tokens": 8192, "peer_rows": 32},
    "vision": SMALL | {"max_tokens": 10},
    "gpu": {
        "prompts": 64, "group": 8, "max_tokens": 512, "hit_rate": 0.5, "micro_batch_tokens": 16_384, "dtype": "bfloat16",
        "peer_rows": 16,
    },
}  # fmt: skip
"""TRL's micro-batch is the fastest of those tried on this benchmark's CPU; on a GPU, try `--peer-rows`.

Of the wide model's groups of 8, less than one in a hundred is all right or all wrong by chance."""


SERVER_ARGUMENTS = "--gpu-memory-utilization 0.35 --max-model-len 1024"
"""Of a server that shares the GPU with the trainer."""


def job(case: str, folder: Path) -> sides.Work:
    """What a case measures; makes its model and data where they are missing."""
    if case.startswith("quickstart"):
        model, data = sides.quickstart(folder / "quickstart")
    elif case.startswith("smollm2"):
        model, data = sides.smollm2_sft(folder / "smollm2")
    elif case == "vision":
        model, data = sides.after_sft("vision", folder / "vision", seed=0, steps=240)
    elif case == "gpu":
        model, data = sides.wide(folder / "gpu", prompt_tokens=256, config=QWEN)
    else:
        model, data = sides.wide(folder / "wide")
    return sides.Work(model=model, data=data, **CASES[case])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), default="quickstart")
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"), help="models and data of the cases")
    parser.add_argument("--steps", type=int, default=7, help="steps per block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="instead of the case's own")
    parser.add_argument(
        "--peer-rows", type=int, help="rows of a TRL micro-batch, where the case's choice is not its best"
    )
    parser.add_argument(
        "--weights-dtype", choices=("float32", "bfloat16"), default="float32", help="what our model is stored in"
    )
    parser.add_argument(
        "--peer-weights", choices=("float32", "bfloat16"), default="float32", help="what TRL's model is stored in"
    )
    parser.add_argument("--processor-time", action="store_true", help="not the clock's: for a machine that others use")
    parser.add_argument("--no-peer", action="store_true", help="measure our side alone")
    parser.add_argument("--vllm", help="vLLM's executable: our side decodes on a server of it")
    parser.add_argument("--vllm-arguments", default=SERVER_ARGUMENTS, help="of the server")
    parser.add_argument("--weight-transfer", default="auto", help="how weights reach it: rlvr.sampler.weight_transfer")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    todo = job(args.case, args.folder)
    if args.vllm:
        serve = {"command": [args.vllm, "serve"], "arguments": args.vllm_arguments.split()}
        todo = replace(todo, serve={"serve": serve, "weight_transfer": args.weight_transfer})
    todo = replace(
        todo, peer_rows=args.peer_rows or todo.peer_rows, dtype=args.dtype or todo.dtype, peer_weights=args.peer_weights,
        weights_dtype=args.weights_dtype, clock="process_time" if args.processor_time else todo.clock,
    )  # fmt: skip
    work = Path(tempfile.mkdtemp())
    side = sides.Whetstone(todo, work / "ours")
    warm = 3 if args.case.startswith(("quickstart", "gpu")) else 1  # on a GPU kernels are compiled, shape by shape
    for _ in range(warm):
        side.step()
    whetstone_seconds: list[float] = []
    trl_seconds: list[float] = []
    metrics: list[dict[str, float]] = []
    peaks = {"whetstone": peak_memory()}
    for block in range(args.blocks):
        if not args.no_peer:
            trl_seconds.append(trl_block(replace(todo, steps=args.steps + 1, seed=block), work / f"trl{block}"))
        steps = [side.step() for _ in range(args.steps)]
        whetstone_seconds.append(statistics.median(seconds for seconds, _ in steps))
        metrics += [step_metrics for _, step_metrics in steps]
        against = "" if args.no_peer else f" against {trl_seconds[-1]:.3f} s"
        print(f"block {block + 1} of {args.blocks}: {whetstone_seconds[-1]:.3f} s{against}", flush=True)
    peaks["both"] = peak_memory()
    side.trainer.close()
    shutil.rmtree(work)
    report(args, todo, whetstone_seconds, trl_seconds, summary(metrics) | limits(side, todo, metrics), peaks)


def trl_block(todo: sides.Work, work: Path) -> float:
    """Median seconds of a TRL step, its first left out."""
    trainer, times = sides.trl(todo, work)
    trainer.train()
    if torch.cuda.is_available():
        del trainer
        gc.collect()
        torch.cuda.empty_cache()
    return statistics.median(seconds for seconds, _ in times[1:])


def peak_memory() -> float:
    """Peak memory so far, in GiB: of the GPU where there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def summary(steps: list[dict[str, float]]) -> dict[str, float]:
    """Medians of what our trainer says about its own steps."""
    names = (
        "rollout/tokens_per_s", "train/tokens_per_s", "time/rollout_s", "time/credit_s", "time/train_s",
        "time/push_s", "mismatch/mean", "mismatch/max", "server/weights_mismatch", "layout/computed_share", "layout/padding_share",
        "signal/zero_variance_group_share", "signal/zero_advantage_row_share",
    )  # fmt: skip
    return {n: statistics.median(s[n] for s in steps if n in s) for n in names if any(n in s for s in steps)}


def limits(side: sides.Whetstone, todo: sides.Work, steps: list[dict[str, float]]) -> dict[str, float]:
    """How near the machine's limits: arithmetic of the update; of a GPU the share of its maker's peaks, and of those measured here."""
    weights = sum(p.numel() for p in side.trainer.learner.model.parameters())
    rates = [6 * weights * s["layout/tokens"] / s["time/train_s"] for s in steps if "layout/tokens" in s]
    out = {"train/tflops": statistics.median(rates) / 1e12}
    if not torch.cuda.is_available():
        return out
    name = torch.cuda.get_device_name()
    peaks = {"measured": (roofline.best_square(todo.dtype), roofline.streaming())}
    if (card := step_time.named(name)) is not None:
        peaks[card[0]] = (card[1].flops, card[1].bandwidth)
    decode = statistics.median(s["rollout/tokens_per_s"] for s in steps)
    for which, (flops, bandwidth) in peaks.items():
        out[f"train/mfu ({which})"] = out["train/tflops"] * 1e12 / flops
        out[f"rollout/bandwidth ({which})"] = decode * read_per_token(side, todo, weights) / bandwidth
        out[f"peak/tflops ({which})"], out[f"peak/gb_per_s ({which})"] = flops / 1e12, bandwidth / 1e9
    return out


def read_per_token(side: sides.Whetstone, todo: sides.Work, weights: int) -> float:
    """Bytes that must come from memory for a token: its share of the weights, and keys and values of half an answer and its prompt."""
    config = side.trainer.learner.policy.config
    heads = config.num_key_value_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    prompts = render_prompts(side.trainer.tokenizer, [p.prompt for p in side.trainer.problems[:100]])
    prompt_tokens = statistics.mean(len(prompt) for prompt in prompts)
    positions = prompt_tokens + todo.max_tokens / 2
    size = 2 if todo.dtype == "bfloat16" else 4
    return size * (weights / (todo.prompts * todo.group) + 2 * config.num_hidden_layers * heads * positions)


def report(
    args: argparse.Namespace,
    todo: sides.Work,
    whetstone_seconds: list[float],
    trl_seconds: list[float],
    metrics: dict[str, float],
    peaks: dict[str, float],
) -> None:
    """Print and store medians per block and the ratios with their spread."""
    ratios = [t / m for m, t in zip(whetstone_seconds, trl_seconds, strict=True)] if trl_seconds else []
    ratio = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)} if ratios else {}
    body = {
        "case": args.case,
        "work": {k: str(v) if isinstance(v, Path) else v for k, v in vars(todo).items() if k not in ("model", "data")},
        "seconds_whetstone": whetstone_seconds,
        "seconds_trl": trl_seconds,
        "ratio": ratio,
        "whetstone": metrics,
        "peak_memory_gib": peaks,
        "measured": time.strftime("%Y-%m-%d"),
    }
    variant = ["no-peer"] * args.no_peer + [args.dtype] * bool(args.dtype) + ["vllm"] * bool(args.vllm)
    variant += ["weights-bfloat16"] * (todo.weights_dtype == "bfloat16") + ["peer-bfloat16"] * (
        todo.peer_weights == "bfloat16"
    )
    sides.store("-".join([f"step-{args.case}", *variant]), body)
    print(
        f"{todo.prompts} prompts x {todo.group}, up to {todo.max_tokens} tokens, {args.threads} thread(s), {todo.dtype}"
    )
    for name, value in metrics.items():
        print(f"  {name:26s}{value:14.4g}")
    for name, value in peaks.items():
        print(f"  peak memory, {name:13s}{value:12.2f} GiB")
    peer = f", TRL {statistics.median(trl_seconds):.3f} s" if trl_seconds else ""
    print(f"whetstone  {statistics.median(whetstone_seconds):.3f} s a step{peer}")
    if not ratios:
        return
    print(f"ratio      {ratio['median']:.2f}  [{min(ratios):.2f}, {max(ratios):.2f}] over {len(ratios)} blocks")


if __name__ == "__main__":
    main()
