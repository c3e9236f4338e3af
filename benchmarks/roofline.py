"""What this machine can do, and what decoding and training of a model reach of it.

    python -m benchmarks.roofline                       SmolLM2-135M-Instruct, float32, one thread
    python -m benchmarks.roofline --dtype bfloat16      the same computed in bfloat16
    python -m benchmarks.roofline --dtype bfloat16 --weights-dtype bfloat16     and weights stored in it
    python -m benchmarks.roofline --model FOLDER --dtype bfloat16 --rows 64 512 --context 512 --tokens 128 --train-tokens 16384 \
        --train-length 1024 --threads 8                 for one large GPU, where there is one

1. The machine: the rate at which it streams weights from memory, and operations per second of matrix products by shape, over
   as many different matrices as the model has layers, so that no cache holds them.
2. The bound: for each matrix product the longer of its operations at the best rate of any shape and its weights at the streaming
   rate; in decoding the keys and values as well. Nothing else is allowed for.
3. What is reached: seconds of a decoding step and tokens per second of training, their share of the bound, and a profile of
   where the time goes.

Blocks of all three repeat. With one thread seconds are processor seconds, with several they are the clock's, and on a GPU the clock's
after all that was asked of it is done. Writes benchmarks/results/roofline-DTYPE.json, on a GPU roofline-gpu-DTYPE.json.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import sides
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models, optimizer
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.training import Optimizer
from pipelines.sft.pack import Document, micro_batches

BYTES = {"float32": 4, "bfloat16": 2}
SQUARE = 1024
"""Side of the matrices that show the best rate."""
GPU_SQUARE = 8192
"""The same on a GPU."""
GPU_CALLS = 20
"""Calls that are timed together on a GPU, where one can take less time than it takes to ask for it."""
KERNELS = {
    "attention": ("fmha", "flash", "attention", "sdpa"),
    "matrix products": ("gemm", "gemv", "cutlass", "cublas", "nvjet", "xmma", "splitk"),
    "copies": ("memcpy", "copy", "cat", "index"),
    "optimizer": ("adam", "multi_tensor"),
}
"""Words in the names of a GPU's kernels, by what they compute."""
HEAVIEST = 12
"""Kernels that are printed by name after each profile of a GPU, since names that `KERNELS` misses count as everything else."""
CACHE_BYTES = 1 << 29
"""Read between two uses of a matrix, so that it comes from memory."""


@dataclass(frozen=True)
class Matrices:
    """The matrix products that a token passes through."""

    shapes: dict[str, tuple[int, int, int]]
    """Name → (inputs, outputs, how many of them)."""
    keys: int
    """Numbers in the cache for each position of a row: keys and values of all layers."""

    @property
    def numbers(self) -> int:
        """In all matrices."""
        return sum(inputs * outputs * count for inputs, outputs, count in self.shapes.values())

    @classmethod
    def of(cls, model: Any) -> Matrices:
        """Those of a causal LM, by shape."""
        shapes: dict[str, tuple[int, int, int]] = {}
        head = model.get_output_embeddings()
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                name = "head" if module is head else f"{module.in_features}x{module.out_features}"
                shapes[name] = (module.in_features, module.out_features, shapes.get(name, (0, 0, 0))[2] + 1)
        config = model.config.get_text_config()
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(shapes, 2 * config.num_hidden_layers * config.num_key_value_heads * head_size)


def clock() -> float:
    """Seconds: with one thread of the process's processor time, which other work on the machine disturbs least.

    On a GPU of the clock, once all that was asked of it is done.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds_of(work: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of some runs, after one that does not count."""
    work()
    times, calls = [], GPU_CALLS if torch.cuda.is_available() else 1
    for _ in range(repeats):
        began = clock()
        for _ in range(calls):
            work()
        times.append((clock() - began) / calls)
    return min(times)


def streaming() -> float:
    """Bytes read per second by a float32 product of a matrix, larger than any cache, with a vector.

    The same product in bfloat16 is bound by its arithmetic, not by memory. On a GPU the rate of a copy counts too, if it is higher.
    """
    side, device = int((CACHE_BYTES / BYTES["float32"]) ** 0.5), models.device()
    matrix, vector = torch.ones(side, side, device=device), torch.ones(side, device=device)
    read = matrix.nbytes / seconds_of(lambda: matrix @ vector)
    if device.type == "cpu":
        return read
    copied = torch.empty_like(matrix)
    return max(read, 2 * matrix.nbytes / seconds_of(lambda: copied.copy_(matrix)))


def product_seconds(rows: int, inputs: int, outputs: int, dtype: str) -> float:
    """Seconds of one product of activations and a matrix that no cache holds, [rows, inputs] x [inputs, outputs]."""
    kind, device = getattr(torch, dtype), models.device()
    count = max(1, min(64, CACHE_BYTES // (inputs * outputs * BYTES[dtype])))
    weights = [torch.randn(outputs, inputs, device=device).to(kind) for _ in range(count)]
    activations = torch.randn(rows, inputs, device=device).to(kind)

    def work() -> None:
        for weight in weights:
            torch.nn.functional.linear(activations, weight)

    return seconds_of(work) / count


def best_square(dtype: str) -> float:
    """Operations per second of the product of two large square matrices."""
    side = SQUARE if models.device().type == "cpu" else GPU_SQUARE
    return 2 * side**3 / product_seconds(side, side, side, dtype)


def machine(matrices: Matrices, rows: Sequence[int], dtype: str) -> dict[str, Any]:
    """Bytes per second, the best operations per second, and seconds of each product by rows."""
    square = best_square(dtype)
    products = {
        f"{name} at {count}": product_seconds(count, inputs, outputs, dtype)
        for name, (inputs, outputs, _) in matrices.shapes.items()
        for count in rows
    }
    rates = {}
    for key, seconds in products.items():
        name, _, count = key.rpartition(" at ")
        rates[key] = 2 * int(count) * matrices.shapes[name][0] * matrices.shapes[name][1] / seconds
    best = max([square, *rates.values()])
    return {
        "bytes_per_s": streaming(),
        "best_flops": best,
        "square_flops": square,
        "flops": rates,
        "seconds": products,
    }


def bound(matrices: Matrices, about: dict[str, Any], rows: dict[str, int], dtype: str, positions: int = 0) -> float:
    """Least seconds of a forward pass.

    Args:
        about: of `machine`.
        rows: rows of the products: `head`, and `body` for all others.
        positions: of all rows together, whose keys and values are read.
    """
    total = positions * matrices.keys * BYTES[dtype] / about["bytes_per_s"]
    for name, (inputs, outputs, count) in matrices.shapes.items():
        operations = 2 * rows["head" if name == "head" else "body"] * inputs * outputs
        total += count * max(operations / about["best_flops"], inputs * outputs * BYTES[dtype] / about["bytes_per_s"])
    return total


def products_alone(matrices: Matrices, about: dict[str, Any], rows: int) -> float:
    """Seconds of a forward pass's matrix products, as measured one by one."""
    return sum(count * about["seconds"][f"{name} at {rows}"] for name, (_, _, count) in matrices.shapes.items())


def decoding(model: Any, rows: int, context: int, tokens: int, dtype: str) -> tuple[float, dict[str, float]]:
    """Seconds of a decoding step, prefill left out, and the profile of such steps; rows share all of the prompt but its last token."""
    sampler = TorchSampler(model, stop=[], pad=0, dtype=dtype)
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [[5 + i % 7 for i in range(context - 1)] + [row % vocabulary] for row in range(rows)]

    draw_seconds(sampler, prompts, tokens + 1 if sampler.fixed else 2)  # all graphs are captured before time is taken
    seconds = step_seconds(sampler, prompts, tokens)
    with profile(activities=activities(), record_shapes=True) as profiler:
        draw_seconds(sampler, prompts, tokens + 1)
    return seconds, parts(profiler, vocabulary)


def draw_seconds(sampler: TorchSampler, prompts: list[list[int]], tokens: int) -> float:
    """Seconds that so many tokens of every prompt take, prefill included."""
    began = clock()
    sampler.extend(prompts, Sampling(max_tokens=tokens), generator(sampler.device, 0))
    return clock() - began


def step_seconds(sampler: TorchSampler, prompts: list[list[int]], tokens: int) -> float:
    """Seconds of a decoding step, the mean of so many, prefill left out."""
    return (draw_seconds(sampler, prompts, tokens + 1) - draw_seconds(sampler, prompts, 1)) / tokens


def training(model: Any, tokens: int, length: int, dtype: str) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a training step (forward and backward pass, optimizer) over documents of `length` tokens, all trained; its profile."""
    policy = Policy(model, Sampling(), dtype=dtype)
    vocabulary = policy.config.vocab_size
    settings = Optimizer(learning_rate=1e-9)
    stepper = optimizer.Stepper(optimizer.make(model, settings), settings, 1000, 3)
    draw = torch.Generator().manual_seed(0)
    documents = [
        Document(torch.randint(0, vocabulary, (length,), generator=draw).tolist(), 0) for _ in range(tokens // length)
    ]
    rows = [[i] for i in range(len(documents))]

    def step() -> dict[str, float]:
        began = clock()
        for layout, targets in micro_batches(documents, rows, tokens):
            logp, _ = policy.score(layout, targets)
            loss = -logp.mean()
            forward = clock()
            loss.backward()
        backward = clock()
        stepper.step(0)
        ended = clock()
        return {
            "forward": forward - began,
            "backward": backward - forward,
            "optimizer": ended - backward,
            "step": ended - began,
        }

    step()
    times = [step() for _ in range(2)]
    best = min(times, key=lambda seconds: seconds["step"])
    with profile(activities=activities(), record_shapes=True) as profiler:
        step()
    return best, parts(profiler, vocabulary)


def activities() -> list[ProfilerActivity]:
    """What a profile records."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]


def parts(profiler: Any, vocabulary: int) -> dict[str, float]:
    """Share of the processor's time by what it was spent on; of a GPU's time where there is one."""
    spent: dict[str, float] = {}
    gpu = torch.cuda.is_available()
    kernels: dict[str, float] = {}
    for event in profiler.key_averages(group_by_input_shape=True):
        # a replayed graph has kernels, and no operations that they belong to
        # annotations, such as a compiled region's, span kernels that are counted by themselves
        if gpu and event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            kernels[event.key] = kernels.get(event.key, 0.0) + event.self_device_time_total
        elif not gpu:
            part = part_of(event.key, event.input_shapes, vocabulary)
            spent[part] = spent.get(part, 0.0) + event.self_cpu_time_total
    for name, value in kernels.items():
        spent[part_of_kernel(name)] = spent.get(part_of_kernel(name), 0.0) + value
    total = sum(spent.values()) or 1.0
    for name, value in sorted(kernels.items(), key=lambda item: -item[1])[:HEAVIEST]:
        print(f"    {value / total:6.1%} {name[:100]}", flush=True)
    return {part: value / total for part, value in sorted(spent.items(), key=lambda item: -item[1])}


def part_of(name: str, shapes: Sequence[Any], vocabulary: int) -> str:
    """What an operation belongs to.

    >>> part_of("aten::mm", [[8, 64], [64, 1000]], 1000), part_of("aten::exp", [[8, 1000]], 1000), part_of("aten::mul", [[8, 64]], 1000)
    ('head', 'sampling and loss', 'norms, activations, residuals')
    """
    sizes = [size for shape in shapes if isinstance(shape, list) for size in shape if isinstance(size, int)]
    wide = vocabulary in sizes
    operation = name.removeprefix("aten::").lstrip("_")
    if (
        operation in ("mm", "addmm", "linear", "mkldnn_linear", "mkldnn_linear_pointwise")
        or name == "mkldnn::_linear_pointwise"
    ):
        return "head" if wide else "matrix products of the layers"
    if "attention" in operation or operation in ("bmm", "baddbmm", "softmax", "log_softmax"):
        return "attention"
    if "adam" in operation or "foreach" in operation:
        return "optimizer"
    if wide:
        return "sampling and loss"
    if operation in ("copy_", "index_select", "index", "cat", "to", "clone", "contiguous", "slice", "index_copy_"):
        return "copies"
    return "norms, activations, residuals"


def part_of_kernel(name: str) -> str:
    """What a kernel of a GPU belongs to.

    >>> part_of_kernel("fmha_cutlassF_bf16_aligned_64x64_rf_sm80"), part_of_kernel("sm90_xmma_gemm_bf16bf16"), part_of_kernel("sort")
    ('attention', 'matrix products', 'everything else')
    """
    lowered = name.lower()
    return next((part for part, words in KERNELS.items() if any(word in lowered for word in words)), "everything else")


def measured(model: Any, about: dict[str, Any], matrices: Matrices, args: argparse.Namespace) -> dict[str, Any]:
    """One block: decoding at each number of rows, then training."""
    body: dict[str, Any] = {"decoding": {}}
    for rows in args.rows:
        seconds, where = decoding(model, rows, args.context, args.tokens, args.dtype)
        positions = rows * (args.context + args.tokens // 2)
        least = bound(matrices, about, {"body": rows, "head": rows}, args.dtype, positions)
        body["decoding"][str(rows)] = {
            "seconds": seconds, "tokens_per_s": rows / seconds, "bound_seconds": least, "share": least / seconds,
            "products_share": products_alone(matrices, about, rows) / seconds, "where": where,
        }  # fmt: skip
        if torch.cuda.is_available():
            read = BYTES[args.dtype] * (matrices.numbers + positions * matrices.keys)
            body["decoding"][str(rows)]["bandwidth_share"] = read / seconds / about["bytes_per_s"]
    times, where = training(model, args.train_tokens, args.train_length, args.dtype)
    scored = args.train_tokens - args.train_tokens // args.train_length
    least = 3 * bound(matrices, about, {"body": args.train_tokens, "head": scored}, args.dtype)
    body["training"] = {
        "seconds": times, "tokens_per_s": args.train_tokens / times["step"], "bound_seconds": least,
        "share": least / times["step"], "where": where,
    }  # fmt: skip
    if torch.cuda.is_available():
        operations = 6 * args.train_tokens * matrices.numbers
        body["training"]["mfu"] = operations / times["step"] / about["best_flops"]
    return body


def summary(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, lowest and highest share and rate of each workload over the blocks."""
    out: dict[str, Any] = {}
    workloads: dict[str, tuple[str, ...]] = {
        f"decoding, {rows} rows": ("decoding", rows) for rows in blocks[0]["decoding"]
    } | {"training": ("training",)}
    for label, path in workloads.items():
        cells = [block[path[0]] if len(path) == 1 else block[path[0]][path[1]] for block in blocks]
        out[label] = {
            what: [statistics.median(v), min(v), max(v)]
            for what in ("tokens_per_s", "share", "bandwidth_share", "mfu")
            if what in cells[0]
            for v in [[cell[what] for cell in cells]]
        }
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=sorted(BYTES), default="float32")
    parser.add_argument("--weights-dtype", choices=sorted(BYTES), default="float32", help="what weights are stored in")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64], help="rows of a decoding step")
    parser.add_argument("--context", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=16, help="decoding steps")
    parser.add_argument("--train-tokens", type=int, default=1024)
    parser.add_argument("--train-length", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    folder = args.model or sides.smollm2(args.folder / "smollm2")[0]
    about_model = {"path": str(folder), "dtype": args.dtype, "weights_dtype": args.weights_dtype}
    model: Any = models.load_model(folder, Model.model_validate(about_model))
    model.to(models.device())
    matrices = Matrices.of(model)
    blocks, machines = [], []
    for number in range(args.blocks):
        machines.append(machine(matrices, sorted({*args.rows, args.train_tokens}), args.dtype))
        about = machines[-1]
        blocks.append(measured(model, about, matrices, args))
        rates = f"{about['bytes_per_s'] / 1e9:.1f} GB/s, best {about['best_flops'] / 1e9:.0f} GFLOPS"
        print(f"block {number + 1}, load {os.getloadavg()[0]:.1f}: {rates}", flush=True)
        for label, cells in summary(blocks[-1:]).items():
            more = [f", {what} {cells[what][0]:.0%}" for what in ("bandwidth_share", "mfu") if what in cells]
            text = f"  {label}: {cells['tokens_per_s'][0]:.0f} tokens/s, {cells['share'][0]:.0%} of the bound"
            print(text + "".join(more), flush=True)
    body: dict[str, Any] = {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": machines,
        "blocks": blocks,
        "summary": summary(blocks),
    }
    gpu = torch.cuda.is_available()
    if args.model is None or gpu:
        variant = ["weights-bfloat16"] * (args.weights_dtype == "bfloat16")
        if gpu:
            body["measured"] = {**vars(args), "model": str(folder), "folder": str(args.folder)}
        sides.store("-".join(["roofline", *["gpu"] * gpu, args.dtype, *variant]), body)
    for label, cells in body["summary"].items():
        print(label, {what: [round(v, 3) for v in values] for what, values in cells.items()})
    for block in blocks[:1]:
        for rows, cell in block["decoding"].items():
            print(f"decoding, {rows} rows:", {part: round(share, 3) for part, share in cell["where"].items()})
        print("training:", {part: round(share, 3) for part, share in block["training"]["where"].items()})


if __name__ == "__main__":
    main()
