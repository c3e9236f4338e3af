"""The stage: read, map, normalise, drop repeats and leaks, band by length and difficulty, split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipelines.curate import card, sources
from pipelines.curate.mapping import Rejected, to_problem
from pipelines.curate.similar import Contamination, MinHash, exact_key, near_duplicates, shingles
from pipelines.curate.writer import Writer
from pipelines.data import chat
from pipelines.data.dataset import iter_problems
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.errors import DataError
from pipelines.recipe.settings import Curate, Model
from pipelines.stage.report import Report

Texts = Callable[[], Iterable[tuple[str, str]]]
"""(task, question) pairs of the benchmarks that the recipe evaluates."""


def run(
    curate: Curate, model: Model, *, out: Path, report: Report, seed: int, benchmark_texts: Texts | None = None
) -> dict[str, float]:
    """Write `<split>.parquet`, `card.md`, `card.json`, `dropped.jsonl`, `quarantine.jsonl`, `data.json`.

    Memory is bounded by `batch_rows` records plus some hundred bytes per row for keys and signatures.

    Raises:
        DataError: a source cannot be read, or nothing is left.
    """
    counts = card.Counts(out)
    work = out / "_pass.parquet"
    leaks = None
    if curate.decontaminate is not None and benchmark_texts is not None:
        leaks = Contamination(curate.decontaminate.ngram, benchmark_texts())
    signatures, answers, origins = _first_pass(curate, work, counts, leaks, report)
    repeats = _repeats(curate, work, signatures, answers)
    tokenizer = _tokenizer(model, work, out)
    kept = _second_pass(curate, work, out, counts, repeats, origins, tokenizer, report)
    work.unlink()
    if curate.difficulty is not None:
        from pipelines.curate.difficulty import band  # imports torch, which curation does without

        kept = band(curate.difficulty, model, out, counts, report, seed)
    if not any(kept.values()):
        counts.close()
        raise DataError(f"nothing is left after the filters: {counts.worst()}. Loosen that step in `curate`.")
    about = {
        "splits": kept,
        "template": models.template_identity(tokenizer),
        "benchmark_questions": leaks.texts if leaks else 0,
    }
    (out / "data.json").write_text(json.dumps(about, indent=1, sort_keys=True))
    counts.write(kept, about)
    report.metrics(0, {f"rows/{k}": v for k, v in counts.flat().items()} | {f"split/{k}": v for k, v in kept.items()})
    return {"rows": float(sum(kept.values())), "read": float(counts.read), "quarantined": float(counts.quarantined)}


def prompt_text(problem: Problem) -> str:
    """What the repeat and leak filters compare: the user's and system's words."""
    return "\n".join(m["content"] for m in problem.prompt if m["role"] != "assistant")


def _first_pass(
    curate: Curate, work: Path, counts: card.Counts, leaks: Contamination | None, report: Report
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Map every row, drop exact repeats and leaks; return signatures, answer keys and source numbers of the rows kept."""
    near = curate.near_duplicates
    minhash = MinHash(near.permutations) if near else None
    known: set[int] = set()
    uids: set[str] = set()
    signatures: list[np.ndarray] = []
    answers: list[int] = []
    origins: list[int] = []
    writer = Writer(work, curate.batch_rows)
    for origin, source in enumerate(curate.sources):
        label = str(source.task or source.path)
        for where, row in sources.rows(source):
            counts.saw(label, source.licence)
            report.progress(counts.read, max(counts.read, curate_size(curate)), "reading", unit="row")
            try:
                problem = to_problem(row, source, self_check=curate.self_check)
            except Rejected as reason:
                counts.quarantine(label, where, row, str(reason))
                continue
            text = prompt_text(problem)
            key = exact_key(text)
            if key in known or problem.uid in uids:
                counts.drop("exact_duplicate", problem, "the same prompt came earlier")
                continue
            known.add(key)
            uids.add(problem.uid)
            leak = leaks.hit(text) if leaks else None
            if leak:
                counts.drop("contaminated", problem, f"overlaps with a question of {leak}")
                continue
            writer.add(problem)
            origins.append(origin)
            if minhash is not None and near is not None:
                signatures.append(minhash(shingles(text, near.shingle)))
                answers.append(exact_key(problem.answer))
    writer.close()
    if counts.read == 0:
        raise DataError("curate.sources: the sources hold no rows.")
    stacked = np.stack(signatures) if signatures else np.zeros((0, 1), np.uint32)
    return stacked, np.array(answers, dtype=np.uint64), origins


def curate_size(curate: Curate) -> int:
    """Rows expected, where the recipe says; for the progress line only."""
    return sum(s.size or 0 for s in curate.sources)


def _repeats(curate: Curate, work: Path, signatures: np.ndarray, answers: np.ndarray) -> dict[int, int]:
    near = curate.near_duplicates
    if near is None or len(signatures) == 0:
        return {}

    def shingles_of(rows: np.ndarray) -> dict[int, np.ndarray]:
        wanted = set(rows.tolist())
        return {
            i: shingles(prompt_text(p), near.shingle)
            for i, p in enumerate(iter_problems(work, curate.batch_rows))
            if i in wanted
        }

    return near_duplicates(signatures, answers, near.threshold, shingles_of)


def _tokenizer(model: Model, work: Path, out: Path) -> Any:
    """The model's own tokenizer, or for a fresh model one trained on the rows kept so far and saved with the data."""
    if model.path is not None:
        return models.load_tokenizer(model.path, model)

    def texts() -> Iterator[str]:
        for problem in iter_problems(work):
            yield from (m["content"] for m in problem.prompt)
            yield problem.answer
            if problem.info.get("solution"):
                yield problem.info["solution"]

    tokenizer = models.train_tokenizer(model.tokenizer.kind, model.tokenizer.vocab_size, texts())
    if model.chat_template is not None:
        tokenizer.chat_template = models.template_text(model.chat_template)
    tokenizer.save_pretrained(out / "tokenizer")
    return tokenizer


def split_of(uid: str, splits: dict[str, float]) -> str:
    """The split of a record: depends on its uid and the shares only.

    >>> split_of("a", {"train": 0.5, "heldout": 0.5}) in ("train", "heldout")
    True
    """
    point = exact_key(f"split {uid}") / 2**64 * sum(splits.values())
    for name, share in splits.items():
        point -= share
        if point < 0:
            return name
    return list(splits)[-1]


def _second_pass(
    curate: Curate,
    work: Path,
    out: Path,
    counts: card.Counts,
    repeats: dict[int, int],
    origins: list[int],
    tokenizer: Any,
    report: Report,
) -> dict[str, int]:
    """Near repeats, length bands, splits: one Parquet file each."""
    writers = {name: Writer(out / f"{name}.parquet", curate.batch_rows) for name in curate.splits}
    rows = pq.ParquetFile(work).metadata.num_rows
    for number, problem in enumerate(iter_problems(work, curate.batch_rows)):
        report.progress(number + 1, rows, "filtering", unit="row")
        if number in repeats:
            counts.drop("near_duplicate", problem, f"repeats row {repeats[number]} of those kept")
            continue
        reason = _too_long(curate, problem, tokenizer)
        if reason:
            counts.drop("length", problem, reason)
            continue
        allowed = curate.sources[origins[number]].splits or list(curate.splits)
        writers[split_of(problem.uid, {name: curate.splits[name] for name in allowed})].add(problem)
    for writer in writers.values():
        writer.close()
    return {name: writer.count for name, writer in writers.items()}


def _too_long(curate: Curate, problem: Problem, tokenizer: Any) -> str | None:
    if curate.max_prompt_tokens is not None or curate.min_prompt_tokens > 1:
        tokens = len(chat.render_prompt(tokenizer, problem.prompt))
        if tokens < curate.min_prompt_tokens or tokens > (curate.max_prompt_tokens or tokens):
            return f"the prompt has {tokens} tokens"
    if curate.max_solution_tokens is not None and problem.info.get("solution"):
        tokens = len(tokenizer(problem.info["solution"], add_special_tokens=False)["input_ids"])
        if tokens > curate.max_solution_tokens:
            return f"the solution has {tokens} tokens"
    return None
