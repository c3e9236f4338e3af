"""Keep problems that a model solves sometimes, by measured pass rate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch

from pipelines import verifiers
from pipelines.base.files import digest
from pipelines.contract.model_settings import Model
from pipelines.contract.rollout import Sampler
from pipelines.contract.sampling import Sampling
from pipelines.curate.card import Counts
from pipelines.data import chat
from pipelines.data.dataset import Writer, iter_problems
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.ranks import Ranks
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.settings import Difficulty
from pipelines.stage.report import Report

PROBLEMS_AT_ONCE = 64


class Solver(NamedTuple):
    """The model that solves the problems."""

    sampler: Sampler
    device: torch.device
    """Of its random numbers."""
    tokenizer: Any
    system: str | None
    """The system prompt that it was trained with, which stands before each problem's own."""


def load(path: str, model: Model) -> Solver:
    """A folder's or hub name's model.

    Raises:
        ModelError: the model or its tokenizer cannot be loaded.
    """
    tokenizer = models.load_tokenizer(path, trust_remote_code=model.trust_remote_code)
    policy = models.load_model(path, model)
    policy.to(models.device())  # type: ignore[arg-type]
    stop = models.stop_ids(policy, tokenizer)
    sampler = TorchSampler(policy, stop=stop, pad=tokenizer.pad_token_id, dtype=model.dtype)
    return Solver(sampler, sampler.device, tokenizer, models.system_prompt_of(path))


def band(
    settings: Difficulty,
    model: Model,
    solver: str,
    *,
    out: Path,
    counts: Counts,
    report: Report,
    seed: int,
    ranks: Ranks | None = None,
) -> dict[str, int]:
    """Rewrite every split without the problems outside the band; the rate is kept in the record's info.

    Args:
        solver: folder or hub name of the model that solves them; it is asked with the system prompt that it was trained with.
        ranks: the stage's processes, of which this is the first; default: it is the only one.

    Returns:
        split → rows left.

    Raises:
        ModelError: the model or its tokenizer cannot be loaded.
    """
    ranks = ranks or Ranks()
    own = ranks.load(load, solver, model)
    with _decoding(own, settings, report) as loaded:
        return _banded(loaded, settings, out, counts, report, seed, ranks)


@contextlib.contextmanager
def _decoding(own: Solver, settings: Difficulty, report: Report) -> Iterator[Solver]:
    """The solver itself, or with servers that decode."""
    if settings.sampler is None:
        yield own
        return
    from pipelines.engine.server import serving

    assert isinstance(own.sampler, TorchSampler)
    with serving(settings.sampler, own.sampler, own.tokenizer, work=report.folder, event=report.event) as server:
        yield own._replace(sampler=server)


def _banded(
    loaded: Solver, settings: Difficulty, out: Path, counts: Counts, report: Report, seed: int, ranks: Ranks
) -> dict[str, int]:
    """Rewrite the splits; returns split → rows left."""
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
        parts = [problems[start : start + PROBLEMS_AT_ONCE] for start in range(0, len(problems), PROBLEMS_AT_ONCE)]

        def tell(parts_done: int, before: int = done, most: int = len(problems)) -> None:
            solved = before + min(most, parts_done * PROBLEMS_AT_ONCE)
            report.progress(solved, total, "measuring difficulty", unit="row")

        rates = ranks.divide(loaded, partial(pass_rates, settings=settings, seed=seed), parts, tell)
        done += len(problems)
        for problem, rate in zip(problems, chain.from_iterable(rates), strict=True):
            if settings.low < rate < settings.high:
                problem.info["pass_rate"] = rate
                writer.add(problem)
            else:
                counts.drop("difficulty", problem, f"solved in {rate:.0%} of {settings.samples} tries")
        writer.close()
        rows_left[path.stem] = writer.count
    return rows_left


def pass_rates(
    solver: Solver, parts: Sequence[list[Problem]], *, settings: Difficulty, seed: int
) -> Iterator[list[float]]:
    """Share of correct answers to each problem of some parts; the RNG stream depends on a part's problems, not on their position."""
    sampler, device, tokenizer, system = solver
    sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
    for problems in parts:
        conversations = [chat.with_system_prompt(p.prompt, system) for p in problems]
        rendered = chat.render_prompts(tokenizer, conversations, [p.tools for p in problems])
        prefixes = [tokens for tokens in rendered for _ in range(settings.samples)]
        draw = generator(device, seed, int(digest([p.uid for p in problems])[:12], 16))
        answers = [chat.completion_text(tokenizer, c.tokens) for c in sampler.extend(prefixes, sampling, draw)]
        repeated = [p for p in problems for _ in range(settings.samples)]
        rows = [(p.verifier, text, p.answer, p.info) for p, text in zip(repeated, answers, strict=True)]
        solved = [bool(verdict.correct) for verdict in verifiers.verify_many(rows)]
        yield [
            sum(solved[i : i + settings.samples]) / settings.samples for i in range(0, len(solved), settings.samples)
        ]
