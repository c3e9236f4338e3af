"""Every HTML page with much on it: what the tests of pages look at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import vision_models

from evaluation import comparison, overoptimisation
from evaluation.comparison import Subject
from evaluation.pages import comparison as comparison_pages
from evaluation.pages import lineage, sweep
from evaluation.pages import overoptimisation as overoptimisation_pages
from evaluation.samples import Sample
from flows import report_data, report_page
from pipelines.data import thumbnails
from pipelines.data.images import IMAGES
from tasks.tracking.benchmarks import Answer

QUESTIONS, ANSWERS = 500, 4
WORDS = [
    "the",
    "train",
    "leaves",
    "at",
    "noon",
    "and",
    "the",
    "answer",
    "is",
    "seventeen",
    "because",
    "twice",
    "eight",
    "is",
    "that",
    "many",
]
LONG = "rlvr.optimizer.learning_rate_schedule_of_the_value_function"
"""A name that no table holds unbroken beside others."""


def prose(draw: np.random.Generator, words: int) -> str:
    return " ".join(draw.choice(WORDS, words))


def report(folder: Path) -> str:
    """500 questions with four answers of two checkpoints each, and 2,016 rollouts with the advantages of their tokens."""
    draw = np.random.default_rng(0)
    picture = IMAGES.add(vision_models.picture(400, 300, 1))
    thumbnails.note(folder / "report", json.dumps(picture))

    def answer(number: int) -> Answer:
        scores = [float(v) for v in draw.random(ANSWERS) < 0.5]
        texts = [f"{prose(draw, 60)} {number}-{i}" for i in range(ANSWERS)]
        question = [
            {"role": "user", "content": f"{picture if number == 0 else ''}Question {number}: {prose(draw, 30)}?"}
        ]
        return Answer("gsm8k", question, str(number), "17", texts, scores)

    pairs = [(answer(number), answer(number)) for number in range(QUESTIONS)]
    counts = dict.fromkeys(("gained", "lost", "both", "neither"), 0)
    for pair in pairs:
        counts[report_data.side(*pair)] += 1
    rows = [
        {
            "step": step, "uid": f"{group:032x}", "group": group, "text": "x", "score": 0.5, "correct": bool(group % 2),
            "status": "correct", "components": {"verifier": 0.5}, "prompt": [{"role": "user", "content": prose(draw, 30)}],
            "tokens": [[f"{word} ", round(float(draw.normal()), 2), round(float(draw.normal()), 3)] for word in draw.choice(WORDS, 60)],
        }
        for step in range(1, 9) for group in range(63) for _ in range(ANSWERS)
    ]  # fmt: skip
    (folder / "report").mkdir(parents=True, exist_ok=True)
    names = (
        "reward/mean",
        "rollout/length_mean",
        "policy/entropy",
        "policy/kl_to_reference",
        "rollout/truncated_share",
    )
    lines = [
        {
            "kind": "metrics",
            "step": step,
            "time": 1,
            "values": {name: abs(float(np.sin(step / 30 + i))) for i, name in enumerate(names)},
        }
        for step in range(1, 301)
    ]
    (folder / "report/spool.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    alarm = {"step": 70, "monitor": "truncation", "action": "warn", "text": prose(draw, 40)}
    entry = {"status": "ran", "seconds": 12.0, "artifact": str(folder), "key": "k", "run_id": None, "why": ""}
    stages = {
        "curate": {**entry, "kind": "curate", "status": "reused", "artifact": "", "inputs": {}},
        "sft": {**entry, "kind": "sft", "artifact": "", "inputs": {"data": "curate"}},
        "rlvr": {
            **entry,
            "kind": "rlvr",
            "inputs": {"data": "curate", "model": "sft"},
            "alarms": [alarm],
            "rewards": [prose(draw, 40)],
        },
        "evaluate": {**entry, "kind": "evaluate", "artifact": "", "inputs": {"sft": "sft", "rlvr": "rlvr"}},
    }
    cell = {"value": 0.5, "low": 0.4, "high": 0.6, "n": QUESTIONS}
    scored = {
        name: {"gsm8k": dict.fromkeys(("pass@1", "pass@4", "mean_length", "truncated_share"), cell)} for name in stages
    }
    gain = {"gsm8k": {"sft → rlvr": {**cell, "value": 0.1}}}
    run = {
        "run_id": "a" * 32, "name": f"gspo · seed 1 · {LONG} 3e-4", "started": 0.0, "status": "FINISHED",
        "summary": {"seconds": 77.0, "stages": stages, "evaluation": scored, "differences": gain},
    }  # fmt: skip
    flips = report_data.Flips("gsm8k", "sft", "rlvr", pairs, counts)
    return report_page.page(run, [flips], report_data.followed(rows), rows, "rlvr")


def compared() -> str:
    """Ten arms, so that colours repeat with dashes."""

    def subject(number: int) -> Subject:
        draw = np.random.default_rng(number)
        rows = {
            str(i): Sample(str(i), [float(v) for v in draw.random(4) < 0.3 + number / 20], f"question {i} {prose(draw, 20)}", "7",
                           [prose(draw, 30)] * 4, "p") for i in range(40)
        }  # fmt: skip
        base = {
            str(i): Sample(str(i), [1.0, 1.0, 0.0, 0.0], f"question {i}", "7", [prose(draw, 30)] * 4, "p")
            for i in range(40)
        }
        return Subject(
            name=f"{number}" * 8, run_id=f"{number}" * 32, seed=0, checkpoint="rlvr", artifact=f"rlvr-{number:016x}", recipe="nightly",
            presets=(f"preset_{number}",), overrides=(f"{LONG}=3e-{number}",), settings={LONG: f"3e-{number}", "rlvr.advantage": "grpo"},
            samples={"base": {"gsm8k": base}, "rlvr": {"gsm8k": rows}}, cost={"seconds rlvr": 33.0, "completions": 1e6},
            curves={"rlvr: reward/mean": [(i, float(np.sin(i / 20 + number))) for i in range(100)]},
        )  # fmt: skip

    arms = comparison.arms_of([subject(number) for number in range(10)])
    return comparison_pages.html(comparison.compare(arms), " vs ".join(arm.name for arm in arms[:3]))


def swept() -> str:
    """Six variants with curves of two seeds."""
    rows = [
        {
            "name": f"preset_{i} · rlvr.lr 3e-{i}", "mean": 0.5 - i / 20, "low": 0.4 - i / 20, "high": 0.6 - i / 20,
            "by_seed": [0.5, 0.4], "best": 0.5, "rank_low": 1, "rank_high": 6, "gain": 0.1, "gain_low": 0.0, "gain_high": 0.2,
            "cost": {"seconds": 20, "steps": 12}, "truncated": 0.3, "runs": [f"{i}" * 32, f"{i + 1}" * 32], "seeds": [0, 1],
        }
        for i in range(6)
    ]  # fmt: skip
    curves = [
        {"reward/mean": [[(s, float(np.sin(s / 9 + i + seed / 9))) for s in range(60)] for seed in (0, 1)]}
        for i in range(6)
    ]
    start = {
        "name": "sft", "mean": 0.3, "low": 0.2, "high": 0.4, "truncated": 0.2, "runs": ["9" * 32], "seeds": [None],
    }  # fmt: skip
    body = {"recipe": "nightly", "task": "gsm8k", "confidence": 0.95, "leaderboard": rows, "start": start, "shares": {}}
    return sweep.page(
        body,
        sweep.cells(rows, start),
        curves=curves,
        links={"0" * 32: "http://127.0.0.1:5000/#/x"},
        notes=[f"failed: {LONG}"],
    )


def traced() -> str:
    """A chain of eight, one of them tampered with."""
    nodes = [
        {
            "id": str(i),
            "kind": "model",
            "title": f"rlvr-{i:016x}",
            "about": [LONG, f"contents {i:012x}"],
            "faults": ["changed"] * (i == 3),
        }
        for i in range(8)
    ]
    edges = [(str(i), str(i + 1)) for i in range(7)] + [("0", "4")]
    return lineage.html({"name": "rlvr/gsm8k/pass@1", "nodes": nodes, "edges": edges, "faults": ["rlvr is changed"]})


def overoptimised() -> str:
    """A curve with its fitted law."""
    distance = np.linspace(0, 4, 30)
    gold = 0.5 + overoptimisation.law("rl", distance) @ [0.4, -0.3]
    curve = overoptimisation.Curve("rlvr", "rl", distance, gold, distance / 4)
    return overoptimisation_pages.html([(curve, overoptimisation.fit(curve))], "Over-optimisation")


def every(folder: Path) -> dict[str, str]:
    """Name → page."""
    return {
        "report": report(folder), "compare": compared(), "sweep": swept(), "lineage": traced(), "overoptimisation": overoptimised(),
    }  # fmt: skip
