"""The stage: read, map, normalise, drop repeats and leaks, band by length and difficulty, split."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import xxhash

from pipelines.base.errors import DataError
from pipelines.contract.model_settings import Model
from pipelines.curate import card, control, offered, sources
from pipelines.curate.answered import has_answers
from pipelines.curate.by_row import Bounds, Reader, Record, prompt_text
from pipelines.curate.cells import DIVIDED, ORIGIN, TEXTS
from pipelines.curate.formats import Row
from pipelines.curate.similar import Contamination, band_keys, exact_key, near_duplicates, shingles
from pipelines.curate.values import RowError
from pipelines.data import marks
from pipelines.data import samples as sampled
from pipelines.data.dataset import Writer, iter_problems
from pipelines.data.pairs import PARTS
from pipelines.data.records import RAW_TEXT, Message, Problem
from pipelines.data.steps import STEPS
from pipelines.engine import models
from pipelines.environments import hidden
from pipelines.recipe.settings import Curate, NearDuplicates, Source
from pipelines.stage.report import Report

if TYPE_CHECKING:
    from pipelines.curate.perceptual import Pictures
    from pipelines.curate.workers import Workers
    from pipelines.engine.ranks import Ranks

BANDED_ROWS = 1024
"""Signatures that wait until the keys of their bands are computed together."""
Texts = Callable[[], Iterable[tuple[str, str]]]
"""(task, question) pairs of the benchmarks that the recipe evaluates."""


def run(
    curate: Curate,
    model: Model,
    *,
    out: Path,
    report: Report,
    seed: int,
    benchmark_texts: Texts | None = None,
    samples: Mapping[int, Path] | None = None,
    solver: Path | None = None,
    ranks: Ranks | None = None,
    workers: Workers | None = None,
) -> dict[str, float]:
    """Write `<split>.parquet` and `data.json`, and into `report/` `card.md`, `card.json`, `dropped.jsonl`, `quarantine.jsonl`.

    Memory is bounded by `batch_rows` records plus some hundred bytes per row for keys and signatures.

    Args:
        samples: index of a source of kind stage → that stage's artifact.
        solver: folder of the model that difficulty is measured with, where a stage made it.
        ranks: the stage's processes, of which this is the first; default: it is the only one.
        workers: processes that work on rows for this one; default: none.

    Raises:
        DataError: a source cannot be read, or nothing is left.
        ModelError: the model's tokenizer cannot be loaded, or samples were drawn from a model of another template.
    """
    counts = card.Counts(out)
    work = out / "_pass.parquet"
    leaks: Contamination | None = None
    if curate.decontaminate is not None and benchmark_texts is not None:
        asked, ngram = list(benchmark_texts()), curate.decontaminate.ngram
        if any(marks.PLACE in question for _, question in asked):
            from pipelines.curate.perceptual import Leaks  # most questions show no picture

            leaks = Leaks(ngram, asked, alone=curate.decontaminate.images == "alone")
        else:
            leaks = Contamination(ngram, asked)
    samples = samples or {}
    _fetch(curate, report)
    kept = _first_pass(curate, work, counts, leaks, report, samples, workers)
    repeats = _repeats(curate, work, kept)
    tokenizer = _tokenizer(model, work, out, samples)
    splits = _second_pass(curate, work, out, counts, repeats, kept.origins, tokenizer, report, workers)
    work.unlink()
    pictured = _write_images(out)
    if curate.difficulty is not None:
        from pipelines.curate.difficulty import band  # imports torch, which curation does without

        path = str(solver or curate.difficulty.model)
        splits = band(curate.difficulty, model, path, out=out, counts=counts, report=report, seed=seed, ranks=ranks)
        pictured = _write_images(out)
    if counts.quarantined:
        report.event(counts.quarantine_summary())
    for text in counts.leftovers():
        report.event(text)
    for text in counts.thin_sources():
        report.event(text, step=0, monitor="rows_left", action="warn")
    if not any(splits.values()):
        counts.close()
        if counts.quarantined == counts.read:
            raise DataError(counts.all_quarantined())
        raise DataError(
            f"nothing is left after the filters: {counts.largest_loss()}", fix="Loosen that step in `curate`."
        )
    about: dict[str, Any] = {"splits": splits, "template": models.template_identity(tokenizer)}
    (out / "data.json").write_text(json.dumps(about, indent=1, sort_keys=True))
    counts.write(splits, about | pictured | {"benchmark_questions": leaks.texts if leaks else 0})
    rows = {f"rows/{name}": count for name, count in counts.rows_by_step().items()}
    report.metrics(0, rows | {f"split/{name}": count for name, count in splits.items()})
    return {"rows": float(sum(splits.values())), "read": float(counts.read), "quarantined": float(counts.quarantined)}


def _write_images(out: Path) -> dict[str, Any]:
    """Write the images that the kept records name; returns what the card tells of them."""
    images = sys.modules.get("pipelines.data.images")
    digests = images.write_named(out) if images is not None else []  # without it no row of this process can name one
    return {"images": len(digests), "image_sizes": images.in_words(digests)} if images and digests else {}


def _fetch(curate: Curate, report: Report) -> None:
    """Copy what sources name by an address to this machine, as far as it is not here."""

    def show(done: int, total: int | None) -> None:
        report.progress(done / 1e6, max(total or 0, done) / 1e6, "fetching", unit="MB")

    for source in curate.sources:
        if source.elsewhere:
            from pipelines.recipe import fetched

            fetched.fetch(source, show)


class _Alike:
    """Whether the problems of a source all ask the same, though they have different answers."""

    def __init__(self) -> None:
        self.rows = 0
        self.first: Problem | None = None
        self.one_prompt, self.one_problem = True, True

    def add(self, problem: Problem) -> None:
        """The next record of the source."""
        self.rows += 1
        self.first = self.first or problem
        if self.one_prompt:
            self.one_prompt = (
                ORIGIN not in problem.info and problem.raw_text is None and _asked(problem) == _asked(self.first)
            ) and not hidden(problem.info)
            self.one_problem &= (problem.answer, problem.info) == (self.first.answer, self.first.info)

    def check(self, field: str, label: str, source: Source) -> None:
        """Raise DataError where one prompt stands for different problems: what tells them apart is in none."""
        if self.first is None or not self.one_prompt or self.one_problem:
            return
        fix = "`prompt_template`" if source.prompt_template else "`columns: {prompt: COLUMN}`"
        raise DataError(
            field,
            f"all {self.rows:,} rows of {label} have the same prompt, {self.first.prompt[-1]['content'][:80]!r}, and not the same answer "
            "or info",
            f"Put what tells them apart into the prompt: see {fix}.",
        )


def _asked(problem: Problem) -> list[Message]:
    """The conversation without the system message, which a source may write."""
    return [message for message in problem.prompt if message["role"] != "system"]


class _Kept:
    """What is remembered of the rows kept so far: flat arrays and hashes, so that a row costs some hundred bytes."""

    def __init__(self, near: NearDuplicates | None) -> None:
        self.near = near
        self.pictures: Pictures | None = None
        self.prompts: set[int] = set()
        self.uids: set[int] = set()
        self.origins = array("I")
        self._keys = bytearray()
        self._bands = 1
        self._signatures: list[bytes] = []
        self._answers: list[int] = []

    def first_with_prompt(self, key: int) -> bool:
        """Whether no row before had the prompt; from now on one has."""
        if key in self.prompts:
            return False
        self.prompts.add(key)
        return True

    def claim_uid(self, uid: str) -> None:
        """Raise RowError where a row before has the uid."""
        key = xxhash.xxh3_64_intdigest(uid.encode())
        if key in self.uids:
            raise RowError("uid", "another row has the same uid", repr(uid))
        self.uids.add(key)

    def add(self, record: Record, origin: int) -> None:
        """Remember source number, and what near repeats are found by where they are looked for."""
        self.origins.append(origin)
        if self.near is not None:
            self._signatures.append(record.signature)
            self._answers.append(record.answer)
            if len(self._answers) == BANDED_ROWS:
                self._band(self.near)

    def _band(self, near: NearDuplicates) -> None:
        """Of signatures only the keys of their bands are kept."""
        signatures = np.frombuffer(b"".join(self._signatures), np.uint32).reshape(-1, near.permutations)
        keys = band_keys(signatures, np.array(self._answers, np.uint64), near.threshold)
        self._bands = keys.shape[1]
        self._keys += keys.tobytes()
        self._signatures, self._answers = [], []

    def shown(self, problem: Problem) -> str:
        """Equal for records with the same pictures, where near repeats are looked for."""
        text = prompt_text(problem)
        if self.near is None or marks.PLACE not in text:
            return ""
        from pipelines.curate.perceptual import Pictures

        self.pictures = self.pictures or Pictures(near=self.near.images == "near")
        return self.pictures.key(text)

    def keys(self) -> np.ndarray:
        """uint64 [kept rows, bands]."""
        if self._answers and self.near is not None:
            self._band(self.near)
        return np.frombuffer(self._keys, np.uint64).reshape(-1, self._bands)


def _first_pass(
    curate: Curate,
    work: Path,
    counts: card.Counts,
    leaks: Contamination | None,
    report: Report,
    samples: Mapping[int, Path],
    workers: Workers | None,
) -> _Kept:
    """Map every row, drop exact repeats and leaks; return what the later passes need of the rows kept."""
    kept = _Kept(curate.near_duplicates)
    expected = sum(source.size or 0 for source in curate.sources)
    writer = Writer(work, curate.batch_rows)
    for origin, source in enumerate(curate.sources):
        label = source.label
        controls: list[Problem] = []
        alike = _Alike()
        reader = Reader(curate, source, answered=has_answers(source), leaks=leaks)
        read = sources.rows(source, samples.get(origin), work.with_suffix(".images"))
        for row, record in workers.map(reader, read) if workers else ((row, reader.record(row)) for row in read):
            counts.count_read(label, source.licence)
            report.progress(counts.read, max(counts.read + 1, expected), "reading", unit="row")
            try:
                if isinstance(record, RowError):
                    raise record
                problem = record.problem
                alike.add(problem)
                if not kept.first_with_prompt(record.key):
                    counts.drop("exact_duplicate", problem, "the same prompt came earlier")
                    continue
                kept.claim_uid(problem.uid)
            except RowError as error:
                counts.quarantine(label, row, error)
                continue
            if not record.compared:
                reader.compare(record, kept.shown)
            if record.leak:
                of_pictures = " or shows its picture" if marks.PLACE in prompt_text(problem) else ""
                counts.drop("contaminated", problem, f"overlaps with a question of {record.leak}{of_pictures}")
                continue
            writer.add(problem)
            counts.count_record(label, record.extra, record.lost)
            kept.add(record, origin)
            if len(controls) < control.ROWS and problem.raw_text is None:
                controls.append(problem)
        if source.kind not in ("environment", "stage"):
            alike.check(f"curate.sources.{origin}", label, source)
        if curate.self_check:
            control.check(label, controls)
    writer.close()
    if counts.read == 0:
        raise DataError("curate.sources", "the sources hold no rows.")
    return kept


def _repeats(curate: Curate, work: Path, kept: _Kept) -> dict[int, int]:
    """Kept row → the earlier kept row that it nearly repeats; several completions of one problem are wanted, so those never do."""
    near = curate.near_duplicates
    if near is None or not kept.origins:
        return {}

    def shingles_of(rows: np.ndarray) -> dict[int, np.ndarray]:
        wanted = set(rows.tolist())
        return {
            number: shingles(marks.MARK.sub(" ", prompt_text(problem)), near.shingle)
            for number, problem in enumerate(iter_problems(work, curate.batch_rows))
            if number in wanted
        }

    repeats = near_duplicates(kept.keys(), near.threshold, shingles_of)
    return {row: earlier for row, earlier in repeats.items() if curate.sources[kept.origins[row]].kind != "stage"}


def _tokenizer(model: Model, work: Path, out: Path, samples: Mapping[int, Path]) -> Any:
    """The model's own tokenizer, or for a fresh model that of the samples, else one trained on the rows kept so far; saved with the
    data where it is no model's own."""
    start = model.path or next((str(folder / "tokenizer") for folder in samples.values()), None)
    if start is not None:
        tokenizer = models.load_tokenizer(start, model)
        for number, folder in samples.items():
            models.check_template(sampled.about(folder).get("template"), tokenizer, f"curate.sources.{number}")
        if model.path is None:
            models.save_tokenizer(tokenizer, out / "tokenizer")
        return tokenizer

    def texts() -> Iterator[str]:
        for problem in iter_problems(work):
            yield from (marks.MARK.sub("", m["content"]) for m in problem.prompt)
            yield problem.answer
            for tool in problem.tools or ():
                yield offered.signature(tool)
            yield from (str(problem.info[name]) for name in (*TEXTS, RAW_TEXT) if problem.info.get(name))
            yield from (m["content"] for name in PARTS for m in problem.info.get(name, ()))
            yield from problem.info.get(STEPS, ())

    settings = model.tokenizer
    tokenizer = models.train_tokenizer(
        settings.kind,
        settings.vocab_size,
        texts(),
        tools=settings.tools,
        single_digits=settings.single_digits,
        extra_characters=settings.extra_characters,
    )
    if model.chat_template is not None:
        tokenizer.chat_template = models.template_text(model.chat_template)
    models.set_template_options(tokenizer, model)
    if model.fresh is not None and model.fresh.vision is not None:
        from pipelines.engine import vision

        marks.attach(tokenizer, vision.fresh_reader(model.fresh.vision, tokenizer))
    models.save_tokenizer(tokenizer, out / "tokenizer")
    return tokenizer


def split_of(uid: str, splits: dict[str, float], *, again: int = 0) -> str:
    """The split of a record: depends on its uid and the shares only.

    Args:
        again: how often data that the record comes from were divided by uid already. Of one split of such data all could fall on one
            side without a draw of its own, each time.

    >>> split_of("a", {"train": 0.5, "heldout": 0.5}) in ("train", "heldout")
    True
    """
    draw = f"{json.dumps(splits)} {again} {uid}" if again else uid
    point = exact_key(f"split {draw}") / 2**64 * sum(splits.values())
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
    origins: array[int],
    tokenizer: Any,
    report: Report,
    workers: Workers | None,
) -> dict[str, int]:
    """Near repeats, length bands, splits: one Parquet file each."""
    writers = {name: Writer(out / f"{name}.parquet", curate.batch_rows) for name in curate.splits}
    rows = pq.ParquetFile(work).metadata.num_rows
    bounds = Bounds(curate, tokenizer)
    read = iter_problems(work, curate.batch_rows)
    measured = (
        workers.map(bounds, read)
        if workers and bounds.travels
        else ((problem, bounds.fault(problem)) for problem in read)
    )
    for number, (problem, fault) in enumerate(measured):
        report.progress(number + 1, rows, "filtering", unit="row")
        if number in repeats:
            counts.drop("near_duplicate", problem, f"repeats row {repeats[number]} of those kept")
            continue
        source = curate.sources[origins[number]]
        if isinstance(fault, RowError):
            columns = {"uid": problem.uid, "prompt": problem.prompt}
            counts.quarantine(source.label, Row("kept rows", number + 1, columns), fault)
            continue
        if fault:
            counts.drop("length", problem, fault)
            continue
        allowed = source.splits or list(curate.splits)
        origin_uid = str(problem.info.get(ORIGIN, problem.uid))  # a problem's completions go to one split
        shares = {name: curate.splits[name] for name in allowed}
        again = 0
        if source.kind == "stage":
            again = problem.info[DIVIDED] = int(problem.info.get(DIVIDED, 0)) + 1
        writers[split_of(origin_uid, shares, again=again)].add(problem)
    for writer in writers.values():
        writer.close()
    return {name: writer.count for name, writer in writers.items()}
