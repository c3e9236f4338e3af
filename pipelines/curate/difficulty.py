"""Keep problems that a model solves sometimes, by measured pass rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines import verifiers
from pipelines.base.files import digest
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.curate.card import Counts
from pipelines.data import chat
from pipelines.data.dataset import Writer, iter_problems
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.settings import Difficulty
from pipelines.stage.report import Report

PROBLEMS_AT_ONCE = 64


def band(
    settings: Difficulty, model: Model, solver: str, *, out: Path, counts: Counts, report: Report, seed: int
) -> dict[str, int]:
    """Rewrite every split without the problems outside the band; the rate is kept in the record's info.

    Args:
        solver: folder or hub name of the model that solves them; it is asked with the system prompt that it was trained with.

    Returns:
        split → rows left.

    Raises:
        ModelError: the model or its tokenizer cannot be loaded.
    """
    tokenizer = models.load_tokenizer(solver, trust_remote_code=model.trust_remote_code)
    policy = models.load_model(solver, model)
    system = models.system_prompt_of(solver)
    policy.to(models.device())  # type: ignore[arg-type]
    stop = models.stop_ids(policy, tokenizer)
    sampler = TorchSampler(policy, stop=stop, pad=tokenizer.pad_token_id, dtype=model.dtype)
    files = sorted(out.glob("*.parquet"))
    total = sum(pq.ParquetFile(path).metadata.num_rows for path in files)
    done = 0
    rows_left: dict[str, int] = {}
    for path in files:
        records = list(iter_problems(path))
        problems = [record for record in records if record.raw_text is None]
        writer = Writer(path)
        for record in records:
            if record.raw_text is not None:
                writer.add(record)
        for start in range(0, len(problems), PROBLEMS_AT_ONCE):
            batch = problems[start : start + PROBLEMS_AT_ONCE]
            for problem, rate in zip(
                batch, pass_rates(settings, sampler, tokenizer, batch, seed, system=system), strict=True
            ):
                if settings.low < rate < settings.high:
                    problem.info["pass_rate"] = rate
                    writer.add(problem)
                else:
                    counts.drop("difficulty", problem, f"solved in {rate:.0%} of {settings.samples} tries")
            done += len(batch)
            report.progress(done, total, "measuring difficulty", unit="row")
        writer.close()
        rows_left[path.stem] = writer.count
    return rows_left


def pass_rates(
    settings: Difficulty,
    sampler: TorchSampler,
    tokenizer: Any,
    problems: list[Problem],
    seed: int,
    *,
    system: str | None = None,
) -> list[float]:
    """Share of correct answers per problem; the RNG stream depends on the problems, not on their position.

    Args:
        system: system prompt of every problem, before its own.
    """
    sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
    conversations = [chat.with_system_prompt(p.prompt, system) for p in problems]
    rendered = chat.render_prompts(tokenizer, conversations, [p.tools for p in problems])
    prefixes = [tokens for tokens in rendered for _ in range(settings.samples)]
    draw = generator(sampler.device, seed, int(digest([p.uid for p in problems])[:12], 16))
    answers = [chat.completion_text(tokenizer, c.tokens) for c in sampler.extend(prefixes, sampling, draw)]
    repeated = [p for p in problems for _ in range(settings.samples)]
    rows = [(p.verifier, text, p.answer, p.info) for p, text in zip(repeated, answers, strict=True)]
    solved = [bool(verdict.correct) for verdict in verifiers.verify_many(rows)]
    return [sum(solved[i : i + settings.samples]) / settings.samples for i in range(0, len(solved), settings.samples)]
