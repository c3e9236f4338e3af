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
from pipelines.curate.cells import DIVIDED, ORIGIN, TEXTS, Cells, text_key
from pipelines.curate.formats import Row
from pipelines.curate.mapping import to_problem
from pipelines.curate.similar import Contamination, MinHash, exact_key, near_duplicates, shingles
from pipelines.curate.values import RowError
from pipelines.data import chat, marks, pairs
from pipelines.data import samples as sampled
from pipelines.data.control import rendered_mark
from pipelines.data.dataset import Writer, from_row, iter_problems
from pipelines.data.pairs import PARTS, REJECTED_PROMPT
from pipelines.data.records import RAW_TEXT, Message, Problem
from pipelines.data.steps import STEPS
from pipelines.data.template import PLAIN_TEMPLATE, TOOLS_TEMPLATE
from pipelines.engine import models
from pipelines.recipe.settings import Curate, NearDuplicates, Source
from pipelines.stage.report import Report

if TYPE_CHECKING:
    from pipelines.curate.perceptual import Pictures
    from pipelines.engine.ranks import Ranks

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
) -> dict[str, float]:
    """Write `<split>.parquet` and `data.json`, and into `report/` `card.md`, `card.json`, `dropped.jsonl`, `quarantine.jsonl`.

    Memory is bounded by `batch_rows` records plus some hundred bytes per row for keys and signatures.

    Args:
        samples: index of a source of kind stage → that stage's artifact.
        solver: folder of the model that difficulty is measured with, where a stage made it.
        ranks: the stage's processes, of which this is the first; default: it is the only one.

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
    kept = _first_pass(curate, work, counts, leaks, report, samples)
    repeats = _repeats(curate, work, kept)
    tokenizer = _tokenizer(model, work, out, samples)
    splits = _second_pass(curate, work, out, counts, repeats, kept.origins, tokenizer, report)
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


def question_text(problem: Problem) -> str:
    """What the user says."""
    return "\n".join(m["content"] for m in problem.prompt if m["role"] == "user")


def prompt_text(problem: Problem) -> str:
    """What the repeat and leak filters compare: the user's and system's words, or the raw text."""
    if problem.raw_text is not None:
        return problem.raw_text
    asked = [*problem.prompt, *problem.info.get(REJECTED_PROMPT, ())]
    return "\n".join(m["content"] for m in asked if m["role"] != "assistant")


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
            )
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
        self.near, self.minhash = near, MinHash(near.permutations) if near else None
        self.pictures: Pictures | None = None
        self.prompts: set[int] = set()
        self.uids: set[int] = set()
        self.origins = array("I")
        self._signatures = bytearray()
        self._answers = array("Q")

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

    def add(self, problem: Problem, text: str, origin: int) -> None:
        """Remember source number, and signature and answer where near repeats are looked for."""
        self.origins.append(origin)
        if self.near is not None and self.minhash is not None:
            shown = self._shown(text) if marks.PLACE in text else ""
            self._signatures += self.minhash(shingles(marks.MARK.sub(" ", text), self.near.shingle)).tobytes()
            self._answers.append(exact_key(problem.answer + text_key(problem) + shown))

    def _shown(self, text: str) -> str:
        """Equal for texts with the same pictures."""
        from pipelines.curate.perceptual import Pictures

        self.pictures = self.pictures or Pictures(near=self.near is not None and self.near.images == "near")
        return self.pictures.key(text)

    def signatures(self) -> np.ndarray:
        """uint32 [kept rows, permutations]."""
        permutations = len(self.minhash.a) if self.minhash is not None else 1
        return np.frombuffer(self._signatures, dtype=np.uint32).reshape(-1, permutations)

    def answers(self) -> np.ndarray:
        """uint64 [kept rows]: equal for equal answers."""
        return np.frombuffer(self._answers, dtype=np.uint64)


def _first_pass(
    curate: Curate,
    work: Path,
    counts: card.Counts,
    leaks: Contamination | None,
    report: Report,
    samples: Mapping[int, Path],
) -> _Kept:
    """Map every row, drop exact repeats and leaks; return what the later passes need of the rows kept."""
    kept = _Kept(curate.near_duplicates)
    expected = sum(source.size or 0 for source in curate.sources)
    writer = Writer(work, curate.batch_rows)
    for origin, source in enumerate(curate.sources):
        label = source.label
        controls: list[Problem] = []
        alike = _Alike()
        answered = has_answers(source)
        for row in sources.rows(source, samples.get(origin), work.with_suffix(".images")):
            counts.count_read(label, source.licence)
            report.progress(counts.read, max(counts.read + 1, expected), "reading", unit="row")
            try:
                cells = _cells(row)
                problem = _problem(cells, source, curate.self_check, answered)
                text = prompt_text(problem)
                alike.add(problem)
                if not kept.first_with_prompt(exact_key(text + text_key(problem))):
                    counts.drop("exact_duplicate", problem, "the same prompt came earlier")
                    continue
                kept.claim_uid(problem.uid)
            except RowError as error:
                counts.quarantine(label, row, error)
                continue
            # A benchmark's question comes without the system message that this recipe may put before it.
            leak = (leaks.hit(text) or leaks.hit(question_text(problem))) if leaks else None
            if leak:
                of_pictures = " or shows its picture" if marks.PLACE in text else ""
                counts.drop("contaminated", problem, f"overlaps with a question of {leak}{of_pictures}")
                continue
            writer.add(problem)
            counts.count_record(label, cells.extra, cells.lost)
            kept.add(problem, text, origin)
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


def _problem(cells: Cells, source: Source, self_check: bool, answered: bool) -> Problem:
    """The record of a row; those of a sample stage were checked when its problems were curated."""
    if source.kind == "stage":
        return from_row(cells)
    return to_problem(cells, source, self_check=self_check, answered=answered)


def _cells(row: Row) -> Cells:
    """The columns of a row that could be read; otherwise RowError says why not."""
    if row.columns is None:
        raise row.error or RowError("row", "could not be read")
    return Cells(row.columns)


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

    repeats = near_duplicates(kept.signatures(), kept.answers(), near.threshold, shingles_of)
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
) -> dict[str, int]:
    """Near repeats, length bands, splits: one Parquet file each."""
    writers = {name: Writer(out / f"{name}.parquet", curate.batch_rows) for name in curate.splits}
    rows = pq.ParquetFile(work).metadata.num_rows
    renders = _must_render(curate, tokenizer)
    for number, problem in enumerate(iter_problems(work, curate.batch_rows)):
        report.progress(number + 1, rows, "filtering", unit="row")
        if number in repeats:
            counts.drop("near_duplicate", problem, f"repeats row {repeats[number]} of those kept")
            continue
        source = curate.sources[origins[number]]
        try:
            _check_plain(problem, tokenizer)
            reason = _outside_length(curate, problem, tokenizer, renders)
        except (chat.TemplateRefusal, RowError) as error:
            refusal = (
                error
                if isinstance(error, RowError)
                else RowError("prompt", "the model's chat template refuses it", str(error)[:200])
            )
            columns = {"uid": problem.uid, "prompt": problem.prompt}
            counts.quarantine(source.label, Row("kept rows", number + 1, columns), refusal)
            continue
        if reason:
            counts.drop("length", problem, reason)
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


def _must_render(curate: Curate, tokenizer: Any) -> bool:
    """Whether prompts have to go through the chat template: to be counted, or because it may refuse some or not show all of them."""
    bounded = curate.max_prompt_tokens is not None or curate.min_prompt_tokens > 1
    return bounded or tokenizer.chat_template not in (PLAIN_TEMPLATE, TOOLS_TEMPLATE)


def _check_plain(problem: Problem, tokenizer: Any) -> None:
    """Messages are texts, not what a chat template has made of them.

    Raises:
        RowError: one begins or ends with a control token of the model.
    """
    texts = [("prompt", message["content"]) for message in problem.prompt]
    named = ("solution", *pairs.TEXTS, pairs.COMPLETION)
    texts += [(name, str(problem.info[name])) for name in named if problem.info.get(name)]
    for field, text in texts:
        mark = rendered_mark(tokenizer, text)
        if mark is not None:
            fix = f"{mark!r}; give messages with role and content, and answers without an end token"
            raise RowError(field, "it begins or ends with a control token, as a rendered conversation does", fix)


def _outside_length(curate: Curate, problem: Problem, tokenizer: Any, renders: bool) -> str | None:
    """Why the record is too short or too long, None where it is not.

    Raises:
        TemplateRefusal: the chat template refuses the conversation.
    """
    if renders and problem.raw_text is None:
        tokens = len(chat.render_prompt(tokenizer, problem.prompt, problem.tools))
        if tokens < curate.min_prompt_tokens or tokens > (curate.max_prompt_tokens or tokens):
            return f"the prompt has {tokens} tokens"
    if curate.max_solution_tokens is not None and problem.info.get("solution"):
        tokens = len(tokenizer(problem.info["solution"], add_special_tokens=False)["input_ids"])
        if tokens > curate.max_solution_tokens:
            return f"the solution has {tokens} tokens"
    return None
