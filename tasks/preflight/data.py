"""Before the first stage: the rows of a source become records, and have the fields that other stages name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError, Problem, UserError
from pipelines.curate.formats import ENDINGS
from pipelines.data.files import data_files
from pipelines.data.records import Part
from pipelines.data.records import Problem as Record
from pipelines.recipe.settings import Source
from pipelines.recipe.stage_checks import data_sources, feeding
from pipelines.recipe.stage_kind import Node

ASK = "rows"
GENERATED = ("reasoning_gym", "environment")
"""Kinds of sources whose rows all have the same fields."""
FIRST_MADE, FIRST_READ = 3, 1000
"""Rows that are looked at, of a generator and of a file."""


def question(source: Source) -> dict[str, Any] | None:
    """What is asked of the process that reads and generates; None for sources of which nothing is known before the run."""
    if source.kind in GENERATED:
        return {"ask": ASK, "source": source.model_dump(mode="json")}
    if source.elsewhere:
        return _of_copies(source)
    if source.kind == "file" and data_files(str(source.path)):
        files = [str(file) for file in data_files(str(source.path))]
        return {"ask": ASK, "source": source.model_dump(mode="json"), "files": files}
    return None


def _of_copies(source: Source) -> dict[str, Any] | None:
    """What is asked of a source that lies elsewhere and whose files were fetched before."""
    from pipelines.data import remote
    from pipelines.recipe import fetched  # most recipes have files of their own

    try:
        there = fetched.pinned(source)
        files = [str(copy) for copy in remote.local_copies(fetched.address(source))]
    except DataError:
        return None
    about = {"ask": ASK, "source": source.model_dump(mode="json"), "files": files}
    return about | {"remote": there} if files else None


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The fields of the info of a source's first record, the parts that it holds and the columns of its row; the problem where none of the
    first rows becomes one, or the source cannot be read."""
    source = Source.model_validate(question["source"])
    if "remote" in question:
        from pipelines.data import remote
        from pipelines.recipe import fetched

        remote.pin(fetched.address(source), question["remote"])
    try:
        return _first_record(source)
    except UserError as error:
        return refusal(error.moved("curate.sources", ""))


def refusal(error: UserError) -> dict[str, Any]:
    """An error as an answer; fields that begin with a dot are parts of what was asked about."""
    return {"problem": str(error), "problems": [problem.record() for problem in error.problems]}


def file_problems(field: str, path: str) -> Iterator[Problem]:
    """What is wrong with a file, or with what a pattern finds."""
    paths = data_files(path)
    if not paths:
        yield Problem(field, f"no file at {path}", f"Paths are relative to {Path.cwd()}.")
    for file in paths:
        fix = "Name a file, or a pattern such as data/*.jsonl."
        try:
            about = file.stat()
        except OSError as error:
            link = "a link to a file that is not there" if file.is_symlink() else str(error.strerror)
            yield Problem(field, f"{file} is {link}" if file.is_symlink() else f"{file}: {link}", fix)
            continue
        if stat.S_ISDIR(about.st_mode):
            yield Problem(field, f"{file} is a folder", fix)
        elif not stat.S_ISREG(about.st_mode):
            yield Problem(field, f"{file} is not a regular file", fix)
        elif not os.access(file, os.R_OK):
            yield Problem(field, f"{file} may not be read", f"Run: chmod u+r {file}")
        elif not file.name.lower().endswith(ENDINGS):
            yield Problem(field, f"{file} does not end in {', '.join(ENDINGS)}", "Give it the ending it has.")
        elif about.st_size == 0:
            yield Problem(field, f"{file} is empty", "Leave the source out, or fill the file.")


def fetched_problems(field: str, source: Source) -> Iterator[Problem]:
    """What is wrong with a source that lies elsewhere; files of stores are not fetched.

    Args:
        field: of the source.
    """
    from pipelines.recipe import fetched

    try:
        files = fetched.listing(source)
    except DataError as error:
        yield from error.moved("curate.sources", field).problems
        return
    for file in files:
        if not file.name.lower().endswith(ENDINGS):
            endings = ", ".join(ENDINGS)
            yield Problem(f"{field}.path", f"{file.url} does not end in {endings}", "Give it the ending it has.")
        elif file.size == 0:
            yield Problem(f"{field}.path", f"{file.url} is empty", "Leave the source out, or fill the file.")


def _first_record(source: Source) -> dict[str, Any]:
    from pipelines.curate.answered import has_answers
    from pipelines.curate.mapping import to_problem
    from pipelines.curate.sources import rows
    from pipelines.curate.values import RowError

    count = FIRST_MADE if source.kind in GENERATED else FIRST_READ
    told: dict[str, Any] = {}
    why = ""
    tried = 0
    answered = has_answers(source)
    for row in rows(source.model_copy(update={"size": min(source.size or count, count)})):
        tried += 1
        try:
            if row.columns is None:
                raise row.error or RowError("row", "could not be read")
            if not told:
                record = to_problem(row.columns, source, self_check=False, answered=answered)
                _try_verifier(record)
                told = {"info": sorted(record.info), "parts": sorted(record.parts), "columns": sorted(row.columns)}
            if not source.columns:
                break
        except RowError as error:
            why = why or f"{row.place}: {error}"
    if tried == 0:
        return {"problem": f"{source.label} has no rows"}
    if not told:
        of = "its only row becomes no record" if tried == 1 else f"none of its first {tried} rows becomes a record"
        return {"problem": f"{of}: {why}"}
    return told


def _try_verifier(record: Record) -> None:
    """A verifier of the user's judges the gold answer of a record.

    Raises:
        DataError: it raises, or returns no verdict; says the line of its code.
    """
    from pipelines import verifiers
    from pipelines.base.user_modules import raised_at
    from pipelines.verifiers.in_process import not_a_verdict

    name, field = record.verifier, "curate.sources.verifier"
    if name in verifiers.VERIFIERS or not record.answer:
        return
    check = verifiers.load(name).verify
    try:
        verdict = check(verifiers.gold(name, record.answer, record.info) or "", record.answer, record.info)
    except UserError:  # a row that it refuses, which is quarantined
        return
    except Exception as error:
        where = f"{type(error).__name__}: {error} ({raised_at(error, check)})"
        raise DataError(field, f"{name} raised {where} for the answer of the first record", "Mend it there.") from error
    if not isinstance(verdict, verifiers.Verdict):
        (told,) = not_a_verdict(name, check, verdict).problems
        raise DataError(field, told.problem, told.fix)


def problems(nodes: list[Node], known: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Settings that name a field which no record can have.

    Args:
        known: field of a source → its answer.
    """
    for node in nodes:
        yield from _lacking(node, known)
        for setting, name in node.kind.info_fields(node.settings).items():
            sources = list(feeding(node, node.settings.split))
            answers = [known.get(where, {}).get("info") for where, source in sources if source.kind in GENERATED]
            there = sorted({field for fields in answers if fields for field in fields})
            if not sources or len(answers) < len(sources) or not all(answers) or name.split(".")[0] in there:
                continue
            field = setting.replace(node.kind.name, node.name, 1)
            yield Problem(
                field, f"no record of {node.settings.split} has info.{name}", f"They have: {', '.join(there)[:500]}."
            )


def _lacking(node: Node, known: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Sources whose first record lacks what the stage reads of every record."""
    part = node.kind.reads_part(node.settings)
    if part is None:
        return
    for name, number, source in data_sources(node):
        where = f"{name}.sources.{number}"
        parts = known.get(where, {}).get("parts")
        read = source.splits is None or node.settings.split in source.splits
        if parts is None or source.kind not in ("file", "sql") or part in parts or not read:
            continue
        fixes = {
            Part.GOLD: f"columns: {{answer: COLUMN}} names their column; a reward that needs none is {node.name}.reward: "
            "{kind: function, path: ./FILE.py:FUNCTION}",
            Part.TARGET: "columns: {solution: COLUMN} names their column",
            Part.PAIR: "Name the columns prompt, chosen and rejected, or prompt, completion and label",
        }
        columns = ", ".join(known[where]["columns"])[:300]
        yield Problem(
            where,
            f"{source.label} has no {part}, and {node.name} reads one of every record",
            f"{fixes[part]}. Its columns: {columns}.",
        )
