"""The metrics of a finished folder of samples, column by column: rows as objects would cost more than small models take to draw them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.data import samples

REWARD = "reward_model"
"""The component that a reward model gives."""
LOG_RATIO = "log_ratio"
"""The component that a reference gives."""
SEARCH_SCORE, DRAWN, SCORED = "search_score", "drawn_tokens", "scored_tokens"
"""The components that a search gives: the score of what it chose, and the tokens that it drew and scored for it."""
PROMPT_TOKENS, COMPLETION_TOKENS = USAGE = ("prompt_tokens", "completion_tokens")
"""The components of an endpoint's answer: the tokens that it counts."""
JUDGE = "judge"
"""The component that the model's own grade gives."""
SCORE = "score"
VARIED = (SCORE, REWARD, JUDGE)
"""The rewards whose variance is told."""
SAME = 1e-12
"""A variance up to this is none."""
COLUMNS = ("uid", "completion_ids", "entropy", "score", "correct", "stop", "components")


def summary(out: Path) -> dict[str, float]:
    """Metrics of a finished folder, a shard in memory at a time.

    Returns:
        rows; `pass_at_1`, `pass_at_k`: mean share of correct completions, and share of problems with at least one, over the
        problems that have a scored completion; `score/mean`; `scored`: share of rows; `length/mean` in tokens, `length/max`;
        `cut`: share of rows that ended at the token limit; `entropy/mean` in nats a token, where it was measured; with a
        reward model `reward_model/mean`, and `best_of_k`: share of problems whose completion with the highest such score is correct;
        with a reference `kl/mean`, the mean log-ratio of whole completions, in nats; with `self_judge` `judge/mean`, and `judge/unread`:
        share of the grades that could not be read; with `search` `search_score/mean`, `drawn_tokens/mean` and `scored_tokens/mean`;
        of an endpoint's answers `usage/prompt_tokens` and `usage/completion_tokens`, those of all rows.
        For each reward (`score`, and where they are `reward_model` and `judge`), over the
        problems of which two completions or more have it: `variance/NAME`, its mean variance (ddof 0) over a problem's completions,
        `variance_share/NAME`, that as a share of its variance over all of them, and `zero_variance/NAME`, share of the problems
        that it finds no difference in. A policy learns from a reward no faster than its variance lets it, however accurate it is
        (What Makes a Reward Model a Good Teacher?, 2503.15477).
    """
    total: dict[str, float] = {}
    longest = 0
    for table in samples.tables(out, COLUMNS):
        lengths = _lengths(table["completion_ids"])
        longest = max(longest, int(lengths.max()))
        for name, value in (_of_shard(table, lengths) | _of_components(table)).items():
            total[name] = total.get(name, 0.0) + float(value)
    rows, problems = total["rows"], total["problems"]
    metrics = {
        "rows": rows,
        "scored": total["scored"] / rows,
        "length/mean": total["tokens"] / rows,
        "length/max": float(longest),
        "cut": total["cut"] / rows,
    }
    if total["entropy_tokens"]:
        metrics["entropy/mean"] = total["entropy"] / total["entropy_tokens"]
    if problems:
        metrics |= {"pass_at_1": total["share"] / problems, "pass_at_k": total["solved"] / problems}
        metrics["score/mean"] = total["score"] / total["scored"]
    if total.get("judged"):
        metrics["judge/unread"] = 1 - total["graded"] / total["judged"]
    for name, summed, count in (
        ("reward_model/mean", "reward", "rewarded"), ("kl/mean", "ratio", "compared"), ("best_of_k", "best", "selected"),
        ("judge/mean", "grade", "graded"), *((f"{name}/mean", name, f"{name}/rows") for name in (SEARCH_SCORE, DRAWN, SCORED)),
    ):  # fmt: skip
        if total.get(count):
            metrics[name] = total[summed] / total[count]
    metrics |= {f"usage/{name}": total[name] for name in USAGE if total.get(f"{name}/rows")}
    for name in VARIED:
        metrics |= _variance(total, name)
    return metrics


def _variance(total: dict[str, float], name: str) -> dict[str, float]:
    """What the sums of `_spread` say of a reward."""
    problems, rows = total.get(f"{name}/problems"), total.get(f"{name}/rows")
    if not problems or not rows:
        return {}
    within = total[f"{name}/variance"] / problems
    metrics = {f"variance/{name}": within, f"zero_variance/{name}": total[f"{name}/flat"] / problems}
    if (overall := total[f"{name}/squares"] / rows - (total[f"{name}/sum"] / rows) ** 2) > SAME:
        metrics[f"variance_share/{name}"] = total[f"{name}/within"] / rows / overall
    return metrics


def _spread(name: str, values: Any, known: Any, starts: Any) -> dict[str, float]:
    """What a shard adds to the sums of a reward's variance.

    Args:
        values: float64 [rows]; read where `known` (bool [rows]).
        starts: first row of each problem.
    """
    values = np.where(known, values, 0.0)
    sizes = np.diff([*starts, len(values)])
    count = np.add.reduceat(known.astype(np.int64), starts)
    mean = np.add.reduceat(values, starts) / np.maximum(count, 1)
    squares = np.add.reduceat(np.where(known, (values - np.repeat(mean, sizes)) ** 2, 0.0), starts)
    told = count >= 2
    variance = squares[told] / count[told]
    compared = values[known & np.repeat(told, sizes)]
    return {
        f"{name}/problems": told.sum(),
        f"{name}/variance": variance.sum(),
        f"{name}/flat": (variance <= SAME).sum(),
        f"{name}/within": squares[told].sum(),
        f"{name}/rows": len(compared),
        f"{name}/sum": compared.sum(),
        f"{name}/squares": (compared**2).sum(),
    }


def _of_shard(table: Any, lengths: Any) -> dict[str, float]:
    """What a shard adds to the sums; its problems' rows stand together."""
    correct, scored = _flags(table["correct"])
    score, _ = _floats(table["score"])
    starts = _starts(table)
    correct_in, scored_in = (np.add.reduceat(flags.astype(np.int64), starts) for flags in (correct & scored, scored))
    entropies = table["entropy"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    asked = scored_in > 0
    return {
        "rows": table.num_rows,
        "scored": scored.sum(),
        "score": score[scored].sum(),
        "tokens": lengths.sum(),
        "entropy": entropies.sum(dtype=np.float64),
        "entropy_tokens": len(entropies),
        "cut": (table["stop"].to_numpy() == "length").sum(),
        "problems": asked.sum(),
        "share": (correct_in[asked] / scored_in[asked]).sum(),
        "solved": (correct_in > 0).sum(),
    } | _spread(SCORE, score, scored, starts)


def _of_components(table: Any) -> dict[str, float]:
    """The sums of what the reward model, the reference and the model's own grades gave; nothing is parsed where none of them is there."""
    import pyarrow.compute as pc

    texts = table["components"]
    if not any(
        pc.any(pc.match_substring(texts, f'"{name}"')).as_py() for name in (REWARD, LOG_RATIO, JUDGE, DRAWN, *USAGE)
    ):
        return {}
    components = [json.loads(text) for text in texts.to_pylist()]
    rewards = [each[REWARD] for each in components if REWARD in each]
    ratios = [each[LOG_RATIO] for each in components if LOG_RATIO in each]
    grades = [each[JUDGE] for each in components if JUDGE in each]
    read = [grade for grade in grades if grade is not None]
    starts = _starts(table).tolist()
    correct = table["correct"].to_pylist()
    best = []
    for first, end in zip(starts, [*starts[1:], len(components)], strict=True):
        rewarded = [row for row in range(first, end) if REWARD in components[row]]
        if rewarded:
            best.append(correct[max(rewarded, key=lambda row: components[row][REWARD])])
    selected = [flag for flag in best if flag is not None]
    spreads: dict[str, float] = {}
    for name in (REWARD, JUDGE):
        rewards_of_rows = [each.get(name) for each in components]
        known = np.array([value is not None for value in rewards_of_rows])
        spreads |= _spread(name, np.array([value or 0.0 for value in rewards_of_rows]), known, np.array(starts))
    searched = {
        name: [each[name] for each in components if name in each] for name in (SEARCH_SCORE, DRAWN, SCORED, *USAGE)
    }
    return {
        **spreads,
        **{name: sum(values) for name, values in searched.items()},
        **{f"{name}/rows": len(values) for name, values in searched.items()},
        "reward": sum(rewards), "rewarded": len(rewards), "ratio": sum(ratios), "compared": len(ratios),
        "judged": len(grades), "grade": sum(read), "graded": len(read), "best": sum(selected), "selected": len(selected),
    }  # fmt: skip


def _starts(table: Any) -> Any:
    """int64 [problems], the first row of each problem."""
    codes = table["uid"].combine_chunks().dictionary_encode().indices.to_numpy()
    return np.flatnonzero(np.diff(codes, prepend=-1))


def _lengths(column: Any) -> Any:
    """int64 [rows], entries of each list."""
    import pyarrow.compute as pc

    return pc.list_value_length(column).to_numpy().astype(np.int64)


def _floats(column: Any) -> tuple[Any, Any]:
    """float64 [rows] with 0 for null, and which are there."""
    import pyarrow.compute as pc

    return pc.fill_null(column, 0.0).to_numpy(), pc.is_valid(column).to_numpy()


def _flags(column: Any) -> tuple[Any, Any]:
    """bool [rows] with False for null, and which are there."""
    import pyarrow.compute as pc

    return pc.fill_null(column, False).to_numpy(), pc.is_valid(column).to_numpy()
