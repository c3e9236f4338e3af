"""Keep problems that a given model solves sometimes: measured, not guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines import verifiers
from pipelines.curate.card import Counts
from pipelines.curate.writer import Writer
from pipelines.data import chat
from pipelines.data.dataset import iter_problems
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.settings import Difficulty, Model, Sampling
from pipelines.stage.files import digest
from pipelines.stage.report import Report

PROBLEMS_AT_ONCE = 64


def band(wanted: Difficulty, model: Model, out: Path, counts: Counts, report: Report, seed: int) -> dict[str, int]:
    """Rewrite every split without the problems outside the band; the rate is kept in the record's info.

    Returns:
        split → rows left.

    Raises:
        ModelError: the model or its tokenizer cannot be loaded.
    """
    tokenizer = models.load_tokenizer(wanted.model, trust_remote_code=model.trust_remote_code)
    policy = models.load_model(wanted.model, model)
    policy.to(models.device())  # type: ignore[arg-type]
    stop = models.stop_ids(policy, tokenizer)
    sampler = TorchSampler(policy, stop=stop, pad=tokenizer.pad_token_id, dtype=model.dtype)
    files = sorted(out.glob("*.parquet"))
    total = sum(pq.ParquetFile(path).metadata.num_rows for path in files)
    done = 0
    left: dict[str, int] = {}
    for path in files:
        problems = list(iter_problems(path))
        writer = Writer(path, 10_000)
        for start in range(0, len(problems), PROBLEMS_AT_ONCE):
            part = problems[start : start + PROBLEMS_AT_ONCE]
            for problem, rate in zip(part, pass_rates(wanted, sampler, tokenizer, part, seed), strict=True):
                if wanted.low < rate < wanted.high:
                    problem.info["pass_rate"] = rate
                    writer.add(problem)
                else:
                    counts.drop("difficulty", problem, f"solved in {rate:.0%} of {wanted.samples} tries")
            done += len(part)
            report.progress(done, total, "measuring difficulty", unit="row")
        writer.close()
        left[path.stem] = writer.count
    return left


def pass_rates(
    wanted: Difficulty, sampler: TorchSampler, tokenizer: Any, problems: list[Problem], seed: int
) -> list[float]:
    """Share of correct answers per problem; the stream of random numbers depends on the problems, not on their place."""
    sampling = Sampling(temperature=wanted.temperature, max_tokens=wanted.max_tokens)
    rendered = chat.render_prompts(tokenizer, [p.prompt for p in problems])
    prefixes = [tokens for tokens in rendered for _ in range(wanted.samples)]
    draw = generator(sampler.device, seed, int(digest([p.uid for p in problems])[:12], 16))
    answers = [tokenizer.decode(c.tokens, skip_special_tokens=True) for c in sampler.extend(prefixes, sampling, draw)]
    asked = [p for p in problems for _ in range(wanted.samples)]
    rows = [(p.verifier, text, p.answer, p.info) for p, text in zip(asked, answers, strict=True)]
    solved = [bool(verdict.correct) for verdict in verifiers.verify_many(rows)]
    return [sum(solved[i : i + wanted.samples]) / wanted.samples for i in range(0, len(solved), wanted.samples)]
