"""Evaluation through our sampler beside lm-eval's HFLM: same checkpoint, task, prompts, settings, threads.

    python -m benchmarks.evaluation                  the quickstart's SFT checkpoint on palindromes
    python -m benchmarks.evaluation --case smollm2   SmolLM2-135M-Instruct after its recipe's SFT on sums
    python -m benchmarks.evaluation --case gsm8k     SmolLM2-135M-Instruct as it comes, GSM8K's test questions, 5-shot

Greedy answers, which must be the same texts on both sides; sampled ones, whose scores agree within chance; and log-likelihoods
of multiple choice, which must agree, without examples and with five that all questions share. Blocks alternate; HFLM runs with
the fastest of the batch sizes tried. With `--dtype bfloat16` HFLM's weights are stored in bfloat16, as it loads them itself, and
answers are the same up to rounding. Writes benchmarks/results/evaluation-CASE.json, or evaluation-CASE-bfloat16.json.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from benchmarks import sides, step
from evaluation import harness
from evaluation.model import SamplerLM
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.recipe.settings import Evaluate, Task

CASES: dict[str, dict[str, Any]] = {
    "quickstart": {
        "task": "palindromes",
        "problems": 100,
        "samples": 8,
        "peer_rows": (64, 256),
        "choices": {},
    },
    "smollm2": {
        "task": "sums",
        "problems": 60,
        "samples": 4,
        "peer_rows": (16, 64),
        "choices": {"last_sentence": 20, "last_sentence_5": 4},
        "peer_choice_rows": (4,),
    },
    "gsm8k": {
        "task": "gsm8k_test_5",
        "problems": 32,
        "peer_rows": (8, 32),
        "choices": {},
    },
}
"""Without `samples`, greedy answers are measured alone."""
MODELS: dict[str, Callable[[Path], Path]] = {
    "quickstart": lambda folder: step.job("quickstart", folder).model,
    "smollm2": lambda folder: step.job("smollm2", folder).model,
    "gsm8k": lambda folder: sides.smollm2(folder / "smollm2")[0],
}
"""Where a case's checkpoint is, made if it is not there, below the benchmarks' folder."""


class PeerLM(HFLM):
    """HFLM that takes its special tokens from the chat template, as ours does, and remembers the system prompt."""

    chats = True
    system_prompt: str | None = None

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text that the chat template has rendered."""
        return super().tok_encode(string, add_special_tokens=False, **kwargs)


def answers(samples: dict[str, list[dict[str, Any]]]) -> list[list[Any]]:
    """Of every question the texts before the filters, or the choice that is the most probable one."""
    return [
        list(row["resps"][0])
        if "scores" in row
        else [max(range(len(row["resps"])), key=lambda i: float(row["resps"][i][0][0]))]
        for rows in samples.values()
        for row in rows
    ]


def ask(lm: Any, tasks: Any, task: Task, settings: Evaluate) -> dict[str, Any]:
    """Seconds, score and answers of one evaluation."""
    began = time.perf_counter()
    metrics, samples = harness.evaluate(lm, tasks, task, settings)
    seconds = time.perf_counter() - began
    scores = [row.get("scores", [row.get("acc")]) for rows in samples.values() for row in rows]
    return {
        "seconds": seconds,
        "score": statistics.fmean(statistics.fmean(row) for row in scores),
        "answers": answers(samples),
        "metrics": metrics,
    }


def beside(ours: Any, peers: dict[int, Any], tasks: Any, task: Task, settings: Evaluate, blocks: int) -> dict[str, Any]:
    """Blocks in turn, with the fastest of the peers; `peers` by their batch size."""
    trials = {rows: ask(peer, tasks, task, settings) for rows, peer in peers.items()}
    best = min(trials, key=lambda rows: trials[rows]["seconds"])
    ask(ours, tasks, task, settings)
    whetstone, peer = [], []
    for _ in range(blocks):
        peer.append(ask(peers[best], tasks, task, settings))
        whetstone.append(ask(ours, tasks, task, settings))
    ratios = [b["seconds"] / a["seconds"] for a, b in zip(whetstone, peer, strict=True)]
    pairs = [
        (a, b)
        for x, y in zip(whetstone[0]["answers"], peer[0]["answers"], strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    return {
        "problems": task.limit, "peer_rows": best,
        "seconds_whetstone": [a["seconds"] for a in whetstone], "seconds_hflm": [b["seconds"] for b in peer],
        "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
        "score_whetstone": whetstone[0]["score"], "score_hflm": peer[0]["score"],
        "same_answer_share": statistics.fmean(a == b for a, b in pairs),
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), default="quickstart")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of both sides")
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    case = CASES[args.case]
    folder = MODELS[args.case](args.folder)
    model, tokenizer = models.load_model(folder, Model(path=str(folder))), models.load_tokenizer(folder)
    model.eval()
    peer_model: Any = model
    if args.dtype == "bfloat16":
        peer_model = copy.deepcopy(peer_model).to(torch.bfloat16)
    asked = [Task(name=name) for name in (case["task"], *case["choices"])]
    settings = Evaluate(tasks=asked, bootstrap=100, include=str(Path(__file__).parent / "tasks"))
    tasks = harness.manager(settings)
    ours = SamplerLM(model, tokenizer, batch_size=256, dtype=args.dtype)
    ours.system_prompt = models.system_prompt_of(folder)

    def peers(sizes: tuple[int, ...]) -> dict[int, PeerLM]:
        made = {rows: PeerLM(pretrained=peer_model, tokenizer=tokenizer, batch_size=rows) for rows in sizes}
        for peer in made.values():
            peer.system_prompt = ours.system_prompt
        return made

    body: dict[str, Any] = {"case": args.case, "measured": time.strftime("%Y-%m-%d")}
    kinds: list[tuple[str, dict[str, Any], int]] = [("greedy", {"do_sample": False, "temperature": 0.0}, 1)]
    if "samples" in case:
        kinds.append(("sampled", {}, case["samples"]))
    for kind, sampling, samples in kinds:
        task = Task(name=case["task"], limit=case["problems"], samples=samples, sampling=sampling)
        body[kind] = beside(ours, peers(case["peer_rows"]), tasks, task, settings, args.blocks) | {"samples": samples}
        print(kind, body[kind], flush=True)
    for name, problems in case["choices"].items():
        task = Task(name=name, limit=problems)
        body[name] = beside(ours, peers(case["peer_choice_rows"]), tasks, task, settings, args.blocks)
        print(name, body[name], flush=True)
    sides.store(f"evaluation-{args.case}" + ("" if args.dtype == "float32" else f"-{args.dtype}"), body)


if __name__ == "__main__":
    main()
