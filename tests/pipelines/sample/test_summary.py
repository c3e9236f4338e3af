"""The metrics of a folder of samples: what a loop over its rows finds."""

from __future__ import annotations

import json
import random
from statistics import pvariance

import pytest
import toys

from pipelines.data import samples
from pipelines.sample.summary import summary

K = 4


def rows_of(problems: range, draw: random.Random, extra: bool, entropies: bool) -> list[dict]:
    rows = []
    for problem in problems:
        for place in range(K):
            count = draw.randrange(5)
            score = None if draw.random() < 0.3 else round(draw.random(), 3)
            correct = None if score is None else score > 0.5
            components = {"verifier": score or 0.0}
            if extra and draw.random() < 0.8:
                components |= {"reward_model": draw.gauss(0, 1), "log_ratio": draw.gauss(0, 1)}
                components |= {"judge": draw.choice([None, 0.25, 1.0])}
            rows.append(
                dict.fromkeys(samples.TEXTS, "x")
                | {
                    "uid": f"p{problem}", "sample": place, "prompt_ids": [1], "completion_ids": [2] * count,
                    "logp": [-0.5] * count, "entropy": [draw.random() for _ in range(count)] if entropies else None,
                    "score": score, "correct": correct, "stop": draw.choice(["end", "length"]),
                    "components": json.dumps(components),
                }
            )  # fmt: skip
    return rows


def mean(values):
    return sum(values) / len(values)


def by_loop(rows: list[dict]) -> dict[str, float]:
    groups = [rows[first : first + K] for first in range(0, len(rows), K)]
    scored = [row for row in rows if row["correct"] is not None]
    shares = [mean(flags) for group in groups if (flags := [r["correct"] for r in group if r["correct"] is not None])]
    metrics = {
        "rows": len(rows),
        "scored": len(scored) / len(rows),
        "length/mean": mean([len(row["completion_ids"]) for row in rows]),
        "length/max": max(len(row["completion_ids"]) for row in rows),
        "cut": mean([row["stop"] == "length" for row in rows]),
        "pass_at_1": mean(shares),
        "pass_at_k": mean([share > 0 for share in shares]),
        "score/mean": mean([row["score"] for row in scored]),
    }
    if rows[0]["entropy"] is not None:
        metrics["entropy/mean"] = mean([value for row in rows for value in row["entropy"]])
    parts = [json.loads(row["components"]) for row in rows]
    if any("judge" in part for part in parts):
        grades = [part["judge"] for part in parts if "judge" in part]
        best = []
        for group in groups:
            rewarded = [row for row in group if "reward_model" in row["components"]]
            if rewarded:
                top = max(rewarded, key=lambda row: json.loads(row["components"])["reward_model"])
                best += [] if top["correct"] is None else [top["correct"]]
        metrics |= {
            "reward_model/mean": mean([part["reward_model"] for part in parts if "reward_model" in part]),
            "kl/mean": mean([part["log_ratio"] for part in parts if "log_ratio" in part]),
            "judge/unread": mean([grade is None for grade in grades]),
            "judge/mean": mean([grade for grade in grades if grade is not None]),
            "best_of_k": mean(best),
        }
    for name in ("score", "reward_model", "judge"):
        values = [[value_of(row, name) for row in group] for group in groups]
        told = [known for group in values if len(known := [v for v in group if v is not None]) > 1]
        if told:
            metrics[f"variance/{name}"] = mean([pvariance(known) for known in told])
            metrics[f"zero_variance/{name}"] = mean([len(set(known)) == 1 for known in told])
            means = [(value - mean(known)) ** 2 for known in told for value in known]
            metrics[f"variance_share/{name}"] = mean(means) / pvariance([value for known in told for value in known])
    return metrics


def value_of(row, name):
    return row["score"] if name == "score" else json.loads(row["components"]).get(name)


def test_an_accurate_reward_may_tell_nothing(tmp_path):
    """The paper's point: the verifier ranks rightly and hardly tells, the judge is cruder and varies.

    Two problems of two completions: scores 0.5 0.5 and 0.6 0.5; grades 0 1 and 1 null."""
    row = rows_of(range(1), random.Random(0), extra=False, entropies=False)[0]
    told = [("p0", 0.5, 0.0), ("p0", 0.5, 1.0), ("p1", 0.6, 1.0), ("p1", 0.5, None)]
    rows = [
        row
        | {"uid": uid, "score": score, "correct": True, "components": json.dumps({"verifier": score, "judge": grade})}
        for uid, score, grade in told
    ]
    (tmp_path / samples.FOLDER).mkdir()
    toys.write_samples(tmp_path / samples.FOLDER / samples.shard_name(0), rows)
    metrics = summary(tmp_path)
    assert metrics["variance/score"] == pytest.approx(0.00125) and metrics["zero_variance/score"] == 0.5
    assert metrics["variance_share/score"] == pytest.approx(0.00125 / 0.001875)
    assert metrics["variance/judge"] == pytest.approx(0.25) and metrics["zero_variance/judge"] == 0
    assert metrics["variance_share/judge"] == pytest.approx(1.0) and "variance/reward_model" not in metrics


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("entropies", [False, True])
def test_it_is_what_a_loop_over_the_rows_finds(tmp_path, extra, entropies):
    draw = random.Random(3)
    shards = [rows_of(problems, draw, extra, entropies) for problems in (range(5), range(5, 6), range(6, 12))]
    (tmp_path / samples.FOLDER).mkdir()
    for number, rows in enumerate(shards):
        toys.write_samples(tmp_path / samples.FOLDER / samples.shard_name(number), rows)
    assert summary(tmp_path) == pytest.approx(by_loop([row for rows in shards for row in rows]))


def test_columns_that_a_problem_shares_are_written_once_for_all_of_its_rows(tmp_path):
    rows = rows_of(range(3), random.Random(0), extra=False, entropies=True)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name not in ("uid", "prompt_ids")}
    toys.write_samples(tmp_path / "rows", rows)
    samples.write_columns(tmp_path / "columns", columns, {"uid": ["p0", "p1", "p2"], "prompt_ids": [[1]] * 3})
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "columns").read_bytes()
